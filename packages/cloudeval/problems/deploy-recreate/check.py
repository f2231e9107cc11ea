# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"deployment/{v.name}"
    pods = t.ready(ref)
    t.equal(pods[0]["spec"]["terminationGracePeriodSeconds"], 0, "the grace period")
    t.equal(t.http(pods[0], 8080).text, "web 1.0", "the page")
    t.set_image(ref, "web:2.0")
    mixed = []

    def rolled():
        images = {p["spec"]["containers"][0]["image"] for p in t.store.list("Pod", "default")}
        mixed.append(len(images) > 1)
        status = t.get(ref)["status"]
        return status["updatedReplicas"] == 2 == status["readyReplicas"] and images == {"web:2.0"}

    t.eventually(rolled, "the update does not end", 8)
    t.expect(not any(mixed), "both versions ran at once")
    t.equal(len(t.pods(ref)), 2, "the number of pods")
