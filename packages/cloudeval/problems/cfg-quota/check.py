# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t._behaved()
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{0}, namespace: {1}}}\nspec: {{containers: [{{name: c, image: busybox, resources: {{requests: {{cpu: {2}}}}}}}]}}"
    t.equal(t.get(f"ns/{v.name}")["metadata"]["labels"].get("purpose"), "tests", "the label purpose")
    t.how = "behaviour"
    t.expect(t.refused(pod.format(0, v.name, "1100m")), "a pod that requests 1.1 CPU is admitted")
    t.equal(
        [t.refused(pod.format(n, v.name, "100m")) == "" for n in range(v.pods + 1)],
        [True] * v.pods + [False],
        "which of the pods are admitted",
    )
    t.equal(t.refused(pod.format(9, "default", "2")), "", "a pod in the namespace default")
