# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("member")
    t.equal(t.http("member", 8080, "/state.html").text, v.word, "the page that the hook writes")
    t.equal(t.http("member", 8080).text, "web 1.0", "the image's own page")
    t.equal(t.restarts("member"), 0, "the number of restarts")
