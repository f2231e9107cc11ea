# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"deployment/{v.name}"
    t.ready(ref)
    t.get(ref)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    t.set_image(ref, "web:2.0")
    most, least = [2], [2]

    def rolled():
        pods = [p for p in t.pods(ref)]
        most[0] = max(most[0], len(pods))
        least[0] = min(
            least[0],
            sum(
                1
                for p in pods
                if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", []))
            ),
        )
        status = t.get(ref)["status"]
        return status["updatedReplicas"] == 2 == status["readyReplicas"] == status["replicas"]

    t.eventually(rolled, "the rollout does not end", 8)
    t.equal(most[0], 3, "the largest number of pods during the rollout")
    t.equal(least[0], 2, "the smallest number of ready pods during the rollout")
    t.expect(all(t.http(p, 8080).text == "web 2.0" for p in t.pods(ref)), "the new pods do not serve the new version")
    pod = t.pods(ref)[0]
    t.out(pod, "rm /www/index.html")
    t.eventually(lambda: t.get(ref)["status"]["readyReplicas"] == 1, "a pod whose page fails stays ready", 6)
