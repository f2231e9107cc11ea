# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.equal((t.quota(v.team, "h100", "cpu"), t.quota(v.team, "h100", "nvidia.com/gpu")), (v.cpu, v.gpu), "the quotas")
    t.equal(t.get("resourceflavor/h100")["spec"]["nodeLabels"], {"accelerator": "h100"}, "the node labels")
    job = "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j{0}, labels: {{kueue.x-k8s.io/queue-name: {1}}}}}\nspec: {{template: {{spec: {{restartPolicy: Never, containers: [{{name: c, image: x, resources: {{limits: {{nvidia.com/gpu: {0}, cpu: 1}}}}}}]}}}}}}"
    t.apply(job.format(v.gpu, v.team))
    t.apply(job.format(v.gpu + 1, v.team))
    t.equal(t.queued(f"job/j{v.gpu}"), "h100", "a job that fits")
    t.expect(t.queued(f"job/j{v.gpu + 1}").startswith("held"), "a job beyond the quota starts")
