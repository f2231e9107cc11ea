# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pod = t.ready(v.name)
    t.equal(t.http(v.name, 8080).text, "web 1.0", "the page on port 8080")
    t.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: probe}\n"
        f"spec: {{selector: {{tier: {v.tier}}}, ports: [{{port: 80, targetPort: http}}]}}"
    )
    t.eventually(
        lambda: t.endpoints("svc/probe") == [v.name], "a Service by the tier label does not lead to the pod", 2
    )
    t.equal(t.http("svc/probe", 80, timeout_s=2).text, "web 1.0", "the page through the named port")
    t.equal([c["name"] for c in pod["spec"]["containers"]], ["server"], "the containers")
