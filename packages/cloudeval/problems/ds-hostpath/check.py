# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.ready("ds/collector")
    t.equal(len(pods), 1, "the number of pods")
    t.apply(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: reader}}\nspec: {{containers: [{{name: c, image: busybox, command: [sleep, '60'], volumeMounts: [{{name: d, mountPath: /d}}]}}], volumes: [{{name: d, hostPath: {{path: {v.path}}}}}]}}"
    )
    t.eventually(
        lambda: t.exec("reader", "cat /d/node.txt")[1] == "node-1", "the node's folder does not hold the node's name"
    )
    t.equal(t.limits(pods[0], "collect")["memory"], 32 * 2**20, "the memory limit in force")
