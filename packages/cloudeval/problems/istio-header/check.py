# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    for value, track in (("beta", "next"), ("beta2", "stable"), (None, "stable"), ("Beta", "stable")):
        headers = {v.header: value} if value else {}
        t.equal(
            t.shares(v.host, headers=headers),
            {(v.host, f"track={track}"): 1.0},
            f"the destination with {v.header}: {value}",
        )
