# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"deployment/{v.name}"
    pods = t.ready(ref)
    t.equal(sorted(p["spec"]["nodeName"] for p in pods), ["a", "b", "c"], "the nodes")
    t.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: stranger, labels: {app: stranger}}\nspec: {containers: [{name: c, image: busybox, command: [sleep, '60']}]}"
    )
    t.node_of("stranger")
    t.scale(ref, 4)
    t.sleep(0.5)
    waiting = [p for p in t.pods(ref) if not p["spec"].get("nodeName")]
    t.equal(len(waiting), 1, "the number of waiting pods with four replicas on three nodes")
