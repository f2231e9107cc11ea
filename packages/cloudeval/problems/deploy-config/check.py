# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.ready(f"deployment/{v.name}")
    t.equal(len(pods), 2, "the number of pods")
    for pod in pods:
        t.equal(t.http(pod, 8080).text, v.title, "the page")
    t.equal(t.get(f"cm/{v.name}-content").get("data"), {"index.html": v.title}, "the ConfigMap")
