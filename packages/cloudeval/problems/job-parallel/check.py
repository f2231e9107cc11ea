# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref, most = f"job/{v.name}", [0]

    def done():
        running = [p for p in t.pods(ref) if p["status"]["phase"] in ("Pending", "Running")]
        most[0] = max(most[0], len(running))
        return any(c["type"] == "Complete" for c in t.get(ref).get("status", {}).get("conditions", []))

    t._behaved()
    t.eventually(done, "the Job does not complete", 8)
    t.equal(most[0], 2, "the largest number of pods at once")
    pods = t.pods(ref)
    t.equal(len(pods), v.count, "the number of pods")
    t.equal(pods[0]["spec"]["containers"][0]["name"], "work", "the container")
    t.equal(pods[0]["spec"]["restartPolicy"], "Never", "the restart policy")
