# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.ready(f"deployment/{v.name}")
    t.equal(len(pods), v.replicas, "the number of pods")
    for pod in pods:
        t.equal(t.http(pod, 8080).text, "web 1.0", "a pod's page")
        t.equal(pod["metadata"]["labels"].get("app"), v.name, "the label app")
    t.delete(f"pod/{pods[0]['metadata']['name']}", grace_s=0)
    t.eventually(
        lambda: (
            t.get(f"deployment/{v.name}")["status"]["readyReplicas"] == v.replicas
            and pods[0]["metadata"]["name"] not in t.names(t.pods(f"deployment/{v.name}"))
        ),
        "a lost pod is not replaced",
        6,
    )
    t.equal([c["name"] for c in pods[1]["spec"]["containers"]], ["web"], "the containers")
