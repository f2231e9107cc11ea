# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pod = t.ready(f"deployment/{v.name}")[0]
    t.equal(pod["spec"].get("priority"), v.value, "the pod's priority")
    t.expect(not t.get("priorityclass/urgent").get("globalDefault"), "urgent must not be the default")
    t.how = "behaviour"
    t.expect(abs(t.limits(pod, "web")["shares"] - 512) <= 1, "the CPU request in force is not 500m")
    t.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: late}\nspec: {containers: [{name: c, image: busybox, resources: {requests: {cpu: 200m}}}]}"
    )
    t.unplaced("late")
