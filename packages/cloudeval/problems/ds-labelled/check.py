# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.ready("ds/helper")
    wanted = next(
        n["metadata"]["name"] for n in t.store.list("Node") if n["metadata"]["labels"].get(v.label) == v.value
    )
    t.equal([p["spec"]["nodeName"] for p in pods], [wanted], "the nodes")
    t.set_image("ds/helper", "web:2.0")
    t.sleep(0.4)
    t.equal(t.http(t.pods("ds/helper")[0], 8080).text, "web 1.0", "the page before its pod is deleted")
    t.delete("pod/" + pods[0]["metadata"]["name"])
    t.eventually(
        lambda: [p["spec"]["containers"][0]["image"] for p in t.pods("ds/helper")] == ["web:2.0"],
        "the new pod does not have the new image",
    )
    t.equal(t.http(t.ready("ds/helper")[0], 8080).text, "web 2.0", "the page afterwards")
    t.equal(t.pods("ds/helper")[0]["spec"]["terminationGracePeriodSeconds"], 0, "the grace period")
