# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("bounded")
    limits = t.limits("bounded", "app")
    t.equal(limits["memory"], int(v.memory[:-2]) * 2**20, "the memory limit in force")
    t.equal(limits["cpu"], int(v.cpu[:-1]) / 1000, "the CPU limit in force")
    t.expect(abs(limits["shares"] - 102) <= 1, "the CPU request in force is not 100m")
    t.apply("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {requests.memory: 32Mi}}")
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: next}\nspec: {containers: [{name: c, image: busybox, resources: {requests: {memory: 16Mi}}}]}"
    t.equal(t.refused(text), "", "another pod of 16Mi beside this one")
