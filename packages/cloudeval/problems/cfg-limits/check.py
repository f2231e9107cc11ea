# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {{name: {0}}}\nspec: {{containers: [{{name: c, image: busybox, command: [sleep, '60']{1}}}]}}"
    t.apply(pod.format("plain", ""))
    t.ready("plain")
    limits = t.limits("plain")
    t.equal(
        (limits["memory"], limits["cpu"]), (int(v.memory[:-2]) * 2**20, int(v.cpu[:-1]) / 1000), "the limits in force"
    )
    t.expect(abs(limits["shares"] - 51) <= 1, "the CPU request in force is not 50m")
    t.equal(t.get("plain")["spec"]["containers"][0]["resources"]["requests"]["memory"], "16Mi", "the memory request")
    t.expect(
        t.refused(pod.format("big", ", resources: {limits: {memory: 256Mi}}")), "a container with 256Mi is admitted"
    )
    t.equal(t.refused(pod.format("fit", ", resources: {limits: {memory: 128Mi}}")), "", "a container with 128Mi")
