"""Attacks for `benchmarks/attacks.py`: what a training does to its own process, and how its Python is started.

Each value is given to `attacks.Attack`: code before torch is imported (`before`), before the first iteration (`after`),
after each iteration `i` (`step`) and at the end (`end`); options of the interpreter; a shell command around the
training, which is "$@"; or shell code in its place (`code`), where `$E` is empty or `eroica run ... --`, `$PY` is the
Python and `$T` the training.
"""

# ruff: noqa: E501 - rows of a table

from __future__ import annotations

from typing import Any

#: Iterates without changing anything until the window is open, for 20 s at most; alone not at all.
UNTIL_WINDOW = """
def until_window():
    end = time.monotonic() + 20 * any(name.startswith('EROICA_') for name in os.environ)
    while time.monotonic() < end and not torch.autograd._profiler_enabled():
        optimizer.zero_grad(); optimizer.step(); pause(0.01)
"""

PROCESSES: dict[str, dict[str, Any]] = {
    # how the interpreter is started
    "safe-path": {"what": "the training's Python has a safe path (-P)", "options": ("-P",)},
    "no-variables": {"what": "the training's Python ignores variables (-E)", "options": ("-E",)},
    "no-site": {
        "what": "the training's Python has no site (-S), and finds torch by PYTHONPATH",
        "shell": 'p=$("$1" -c "import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))"); py=$1; shift; PYTHONPATH=$p:$PYTHONPATH "$py" -S "$@"',
    },
    "development": {
        "what": "development mode (-X dev), all warnings are errors, bytes are no texts (-bb)",
        "options": ("-X", "dev", "-W", "error", "-bb"),
    },
    "encoding-warnings": {
        "what": "files opened without an encoding are errors",
        "options": ("-X", "warn_default_encoding", "-W", "error::EncodingWarning:eroica"),
    },
    "no-docstrings": {"what": "no docstrings, no assertions (-OO)", "options": ("-OO",)},
    "checked-memory": {
        "what": "PYTHONMALLOC=debug, and freed memory is overwritten",
        "shell": 'PYTHONMALLOC=debug MALLOC_PERTURB_=165 MALLOC_CHECK_=3 "$@"',
    },
    "from-input": {"what": "the program is read from standard input", "code": '$E $PY - <"$T" | tail -n 5'},
    "as-a-word": {
        "what": "the program is a word (-c), and shows sys.argv and sys.path",
        "code": '$E $PY -c "import sys; print(sys.argv, [p for p in sys.path if \'eroica\' not in p]); exec(open(sys.argv[1]).read())" "$T" | tail -n 5',
    },
    "zipapp": {
        "what": "the training is a zipapp",
        "code": 'mkdir app; cp "$T" app/__main__.py; $PY -m zipapp app -o train.pyz; $E $PY train.pyz | tail -n 5',
    },
    "frozen": {
        "what": "the process says that it is frozen, as PyInstaller's do, and has no modules' files",
        "before": "sys.frozen = True; sys._MEIPASS = '/nowhere'; sys.executable = '/nowhere/train'; sys.argv[0] = '/nowhere/train'; del globals()['__file__']",
    },
    "interactive": {
        "what": "Python stays interactive after the program (-i), without input",
        "options": ("-i", "-q"),
        "shell": '"$@" </dev/null',
    },
    "users-sitecustomize": {
        "what": "sitecustomize and usercustomize of the user's lie on PYTHONPATH, and end by an error",
        "shell": 'mkdir v; echo "import sys; print(1, sys._getframe().f_code.co_filename.rsplit(chr(47))[-1]); raise ValueError(1)" >v/sitecustomize.py; PYTHONPATH=$PWD/v:$PYTHONPATH "$@" 2>&1 | grep -v "line .*in execsitecustomize"',
    },
    # what lies around the process
    "preloaded": {
        "what": "LD_PRELOAD names a library that counts the files opened by the training's own thread",
        "code": (
            "cat >c.c <<'C'\n#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <unistd.h>\n"
            'int fork(void){static int (*f)(void); if(!f) f=dlsym(RTLD_NEXT,"fork"); return f();}\nC\n'
            'cc -shared -fPIC c.c -o c.so -ldl; export LD_PRELOAD=$PWD/c.so; $E $PY "$T" | tail -n 3'
        ),
    },
    "missing-preload": {
        "what": "LD_PRELOAD names a library that is missing",
        "code": "export LD_PRELOAD=/nowhere/lib.so; $E /bin/true",
    },
    "attributes": {
        "what": "everything that the kernel tells of the command is compared: limits, mask, capabilities, niceness, groups, session",
        "code": (
            "$E sh -c 'cat /proc/$$/limits /proc/$$/oom_score_adj /proc/$$/coredump_filter /proc/$$/timerslack_ns /proc/$$/personality "
            "/proc/$$/cgroup /proc/$$/loginuid 2>/dev/null; "
            'grep -E "^(Umask|Uid|Gid|Groups|Sig(Blk|Ign|Cgt)|Cap|NoNewPrivs|Seccomp|Cpus_allowed|Mems_allowed|THP)" /proc/self/status; '
            'ulimit -a; nice; ls -l /proc/$$/fd | sed "s/.* \\([0-9]* ->\\)/\\1/; s/pipe:.*/pipe/"; readlink /proc/$$/cwd /proc/$$/root\''
        ),
    },
    "streams-flags": {
        "what": "flags and position of the three streams are the same before, inside and after",
        "code": "seq 9999 >in; exec <in 3>out; $E $PY -c 'import fcntl, os, sys; print([fcntl.fcntl(n, fcntl.F_GETFL) for n in (0, 1, 2)], os.lseek(0, 0, 1), os.get_blocking(1))'; read x; echo $x",
    },
    "terminal": {
        "what": "the command has a terminal: it is in front, and reads from it",
        "code": "echo typed | script -qec \"$E $PY -c 'import os; print(os.isatty(0), os.isatty(1), os.tcgetpgrp(0) == os.getpgrp(), os.get_terminal_size(), os.getsid(0) > 0); print(input())'\" /dev/null | tr -d '\\r'",
    },
    "no-network": {"what": "there is no network, not even loopback", "code": 'unshare -n $E $PY "$T" | tail -n 3'},
    "first-process": {
        "what": "it is the first process of a container, and orphans come to it",
        "code": "unshare -pf --mount-proc $E sh -c '(sleep 0.1 & ) ; sleep 1; echo ran $(ps -o stat= | grep -c Z)'; echo $?",
    },
    "other-clock": {
        "what": "the monotonic clock began a day earlier",
        "code": 'unshare -T --monotonic 86400 --boottime 86400 $E $PY "$T" | tail -n 3',
    },
    "odd-host": {
        "what": "the host's name is odd",
        "code": 'unshare -u sh -c \'hostname "a/b c"; \'"$E $PY"\' "$0" | tail -n 3\' "$T"',
    },
    "odd-directory": {
        "what": "the working directory's name is no text, and holds a colon, a space and a line break",
        "code": 'd=$(printf \'a:b \\377\\nc\'); mkdir "$d"; cd "$d"; $E $PY "$T" | tail -n 3; ls -A',
    },
    "odd-words": {
        "what": "words are no text",
        "code": "$E printf '%s|' \"$(printf '\\377\\376')\" \"$(printf 'a\\001b')\" | od -c; $E $PY -c 'import sys; print(ascii(sys.argv))' \"$(printf 'x\\377')\"",
    },
    "no-user": {
        "what": "user 1501, whom no file knows, has no home, no terminal, no variable but PATH",
        "code": "chmod 777 . ..; env -i PATH=\"$PATH\" setpriv --inh-caps=+dac_read_search --ambient-caps=+dac_read_search --reuid 1501 --regid 1501 --clear-groups $E $PY -c 'import torch; p = torch.nn.Parameter(torch.ones(2)); o = torch.optim.SGD([p], 1.0); [(p.sum().backward(), o.step()) for _ in range(50)]; print(p)'",
    },
    "closed-place": {
        "what": "user 1501 may not write anywhere",
        "code": "mkdir d; chmod 711 d; cd d; setpriv --inh-caps=+dac_read_search --ambient-caps=+dac_read_search --reuid 1501 --regid 1501 --clear-groups $E $PY -c 'import torch; print(torch.ones(2).sum())'; echo $?",
    },
    "full-environment": {
        "what": "words and environment are as long as the kernel allows, to a few bytes",
        "code": 'export A=$(head -c 100000 /dev/zero | tr \'\\0\' a); n=$($PY -c "import os; free = os.sysconf(\'SC_ARG_MAX\') - sum(len(k) + len(v) + 10 for k, v in os.environb.items()) - 120000; print(free // 100008)"); set --; i=0; while [ $i -lt $n ]; do set -- "$@" "$A"; i=$((i+1)); done; $E sh -c \'echo $#\' "$@"; echo $?',
    },
    "long-words": {
        "what": "one word has 131,000 bytes",
        "code": "w=$(head -c 131000 /dev/zero | tr '\\0' w); $E sh -c 'echo ${#1}' sh \"$w\"; echo $?",
    },
    "temporary-is-a-file": {
        "what": "TMPDIR is a file, XDG_RUNTIME_DIR does not exist",
        "code": "touch f; export TMPDIR=$PWD/f XDG_RUNTIME_DIR=/nowhere; $E sh -c 'echo ran; exit 3'",
    },
    "temporary-counted": {
        "what": "what lies in the working and the temporary directory at the end is counted",
        "code": 'mkdir t; export TMPDIR=$PWD/t; $E $PY "$T" | tail -n 3; ls -A . t',
    },
    "little-time": {"what": "a process may use 20 s of processor time", "shell": 'ulimit -t 20; "$@"'},
    "locked-memory": {
        "what": "all memory, and all that comes, is locked, under a limit",
        "after": "import ctypes, resource; n = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]; resource.setrlimit(resource.RLIMIT_MEMLOCK, (n, n)); print(ctypes.CDLL(None).mlockall(3))",
    },
    # what the training does to itself
    "spawned-training": {
        "what": "the training runs in a process that multiprocessing has spawned",
        "after": "import multiprocessing, subprocess\nif __name__ == '__main__' and 'INNER' not in os.environ:\n    os.environ['INNER'] = '1'\n    raise SystemExit(subprocess.run([sys.executable, '-c', f'import multiprocessing as m, runpy\\nif __name__ == \"__main__\": p = m.get_context(\"spawn\").Process(target=runpy.run_path, args=({__file__!r},), kwargs={{\"run_name\": \"__main__\"}}); p.start(); p.join(); print(p.exitcode)']).returncode)",
    },
    "fork-server": {
        "what": "each hundredth iteration, a fork server starts four processes that use torch",
        "after": "import multiprocessing; server = multiprocessing.get_context('forkserver'); server.set_forkserver_preload(['torch'])",
        "step": "if i % 100 == 40:\n    pool = server.Pool(4); print(pool.map(abs, range(9))); pool.close(); pool.join()",
    },
    "process-pool": {
        "what": "a pool of forked processes works and ends inside the window",
        "after": "import concurrent.futures as cf, multiprocessing",
        "step": "if i % 30 == 15:\n    with cf.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork')) as pool: print(sum(pool.map(abs, range(50))))",
        "options": ("-W", "ignore"),
    },
    "inherited-descriptors": {
        "what": "children started without closing files count theirs",
        "after": "import subprocess",
        "step": "if i % 30 == 5: print(subprocess.run(['sh', '-c', 'ls /proc/$$/fd | wc -l'], close_fds=False, capture_output=True).stdout)",
    },
    "no-children": {
        "what": "the training waits for any child, is a subreaper, and has none",
        "after": "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\ndef children():\n    try: return os.waitpid(-1, os.WNOHANG)\n    except ChildProcessError: return None",
        "step": "found = children()\nif found: print(found)",
    },
    "replaced-in-window": {
        "what": "the training replaces itself by another program inside the window",
        "after": UNTIL_WINDOW,
        "step": "if i == 45: until_window(); os.execvp('sh', ['sh', '-c', 'echo replaced; exit 5'])",
    },
    "left-in-window": {
        "what": "the training leaves by os._exit inside the window",
        "after": UNTIL_WINDOW,
        "step": "if i == 45: until_window(); sys.stdout.flush(); os._exit(6)",
    },
    "aborted-in-window": {
        "what": "the training aborts inside the window, and faulthandler tells its own thread's stack",
        "after": UNTIL_WINDOW + "import faulthandler; faulthandler.enable(all_threads=False)",
        "step": "if i == 45: until_window(); os.abort()",
    },
    "killed-in-window": {
        "what": "the training kills itself inside the window",
        "after": UNTIL_WINDOW,
        "step": "if i == 45: until_window(); os.kill(os.getpid(), 9)",
    },
    "terminated": {
        "what": "SIGTERM comes inside the window: the training's handler saves and leaves by 143",
        "after": UNTIL_WINDOW
        + "import io, signal\ndef leave(*_):\n    kept = io.BytesIO(); torch.save([model.state_dict(), optimizer.state_dict()], kept); print('saved', len(kept.getvalue()) > 1000); sys.exit(143)\nsignal.signal(signal.SIGTERM, leave)",
        "step": "if i == 45: until_window(); os.kill(os.getpid(), 15)",
    },
    "interrupted": {
        "what": "Ctrl-C comes inside the window, and again while the training tidies up",
        "after": UNTIL_WINDOW + "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)",
        "step": "if i == 45:\n    until_window()\n    try: os.kill(os.getpid(), 2); pause(1)\n    except KeyboardInterrupt: print('tidies up')\n    os.kill(os.getpid(), 2); pause(1)",
    },
    "stopped-and-continued": {
        "what": "the training is stopped and continued by a child inside the window",
        "after": "import signal",
        "step": "if i % 40 == 30:\n    child = os.fork()\n    if not child: os.kill(os.getppid(), signal.SIGSTOP); pause(0.5); os.kill(os.getppid(), signal.SIGCONT); os._exit(0)\n    os.waitpid(child, 0)",
        "options": ("-W", "ignore"),
    },
    "wakeup-descriptor": {
        "what": "a wakeup descriptor counts signals, which all threads may take",
        "after": "import signal, socket; a, b = socket.socketpair(); a.setblocking(False); b.setblocking(False); print(signal.set_wakeup_fd(a.fileno())); signal.signal(signal.SIGUSR1, lambda *_: None)",
        "step": "if i % 3 == 0: os.kill(os.getpid(), signal.SIGUSR1)",
        "end": "print(len(b.recv(9999)), signal.set_wakeup_fd(-1) == a.fileno())",
    },
    "interrupted-calls": {
        "what": "a signal breaks off system calls, and a call of the training that is broken off fails",
        "after": "import signal, ctypes; signal.signal(signal.SIGALRM, lambda *_: None); signal.siginterrupt(signal.SIGALRM, True); signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)",
        "end": "signal.setitimer(signal.ITIMER_REAL, 0)",
    },
    "exit-handlers": {
        "what": "handlers at the exit train on, start a thread, and fail",
        "after": "import atexit, threading\ndef more():\n    for _ in range(30): loss = model(x0).sum(); loss.backward(); optimizer.step(); optimizer.zero_grad()\n    print('more', loss.item().hex())\natexit.register(lambda: 1 / 0); atexit.register(more); threading._register_atexit(lambda: print('threads end'))",
        "iterations": 45,
    },
    "main-ends-first": {
        "what": "the main thread ends, and a thread trains on through the window",
        "after": (
            "import threading; own = torch.nn.Linear(8, 1); other = torch.optim.SGD(own.parameters(), 1e-3)\ndef on():\n    threading.main_thread().join()\n"
            "    for n in range(300): loss = own(torch.ones(2, 8)).pow(2).mean(); loss.backward(); other.step(); other.zero_grad(); print(n, loss.item().hex(), flush=True); pause(0.01)\n"
            "threading.Thread(target=on).start()"
        ),
        "iterations": 1,
    },
    "thread-fails": {
        "what": "threads of the training fail, and its threading.excepthook writes their tracebacks",
        "after": "import threading, traceback\nthreading.excepthook = lambda args: print(*traceback.format_exception(*args[:3]))\ndef fails(): optimizer.step(); raise ValueError('mine')",
        "step": "if i % 30 == 7: one = threading.Thread(target=fails); one.start(); one.join()",
    },
    "unraisable": {
        "what": "destructors fail, and the training's sys.unraisablehook counts what they raise",
        "after": "bad = [0]\ndef count(one): bad[0] += 1\nsys.unraisablehook = count\nclass Bad:\n    def __del__(self): raise ValueError",
        "step": "Bad()",
        "end": "print(bad)",
    },
    "all-profiled": {
        "what": "sys.setprofile and threading.setprofile count the calls of torch's functions",
        "after": "import threading; calls = [0]\ndef count(frame, event, value):\n    if event == 'call' and '/torch/' in frame.f_code.co_filename and '/profiler' not in frame.f_code.co_filename: calls[0] += 1\nthreading.setprofile(count); sys.setprofile(count)",
        "end": "sys.setprofile(None); print(calls)",
    },
    "own-profiler": {
        "what": "torch.profiler with a schedule runs all the time, and its steps are counted",
        "after": (
            "found = []\ndef ready(p): found.append(sum(e.name == 'aten::addmm' for e in p.events()))\n"
            "own = torch.profiler.profile(schedule=torch.profiler.schedule(wait=10, warmup=5, active=10), on_trace_ready=ready, record_shapes=True); own.start()"
        ),
        "step": "own.step()",
        "end": "own.stop(); print(found)",
    },
    "own-profiler-late": {
        "what": "torch.profiler of the training's starts and stops inside the window, with stacks and memory",
        "step": "if i % 35 == 10: own = torch.profiler.profile(with_stack=True, profile_memory=True); own.start()\nif i % 35 == 20: own.stop(); print(sum(e.name == 'aten::addmm' for e in own.events()))",
        "iterations": 60,
    },
    "legacy-profiler": {
        "what": "torch.autograd.profiler.profile and record_function are used around iterations",
        "step": "if i % 9 == 0:\n    with torch.autograd.profiler.profile() as own:\n        with torch.autograd.profiler.record_function('mine'): model(x0)\n    print(sum(e.name == 'mine' for e in own.function_events))",
    },
    "anomalies": {
        "what": "anomaly detection and deterministic algorithms are on",
        "after": "torch.autograd.set_detect_anomaly(True); torch.use_deterministic_algorithms(True)",
        "options": ("-W", "ignore"),
    },
    "dispatch-mode": {
        "what": "a dispatch mode counts every operator of the training",
        "after": "from torch.utils._python_dispatch import TorchDispatchMode\nclass Count(TorchDispatchMode):\n    n = 0\n    def __torch_dispatch__(self, f, types, args=(), kwargs=None): Count.n += 1; return f(*args, **(kwargs or {}))\nmode = Count(); mode.__enter__()",
        "end": "mode.__exit__(None, None, None); print(Count.n)",
    },
    "function-mode": {
        "what": "a function mode counts torch's functions",
        "after": "from torch.overrides import TorchFunctionMode\nclass Count(TorchFunctionMode):\n    n = 0\n    def __torch_function__(self, f, types, args=(), kwargs=None): Count.n += 1; return f(*args, **(kwargs or {}))\nmode = Count(); mode.__enter__()",
        "end": "mode.__exit__(None, None, None); print(Count.n)",
    },
    "random-states": {
        "what": "the states of all random generators are compared at the end",
        "after": "import random, numpy, hashlib as h; random.seed(1); numpy.random.seed(1)",
        "end": "print(random.random(), numpy.random.rand(), torch.rand(1).item(), h.md5(torch.get_rng_state().numpy().tobytes()).hexdigest())",
    },
    "nothing-kept": {
        "what": "optimizer, model and loader are deleted, and are gone at once",
        "after": "import gc, weakref; gc.disable()",
        "end": "kept = [weakref.ref(o) for o in (optimizer, model, loader, *model.parameters())]\nfor name in ('optimizer', 'loader', 'kept_model'): globals().pop(name, None)\nkept_model = [p.detach().clone() for p in model.parameters()]; model = torch.nn.ParameterList(kept_model)\nprint([o() is None for o in kept])",
    },
    "references": {
        "what": "references to optimizer, loader, batch and loss are counted after each iteration",
        "step": "counts = globals().setdefault('counts', set()); counts.add((sys.getrefcount(optimizer), sys.getrefcount(loader), sys.getrefcount(model)))",
        "end": "print(sorted(counts))",
    },
    "frozen-garbage": {
        "what": "garbage is frozen, collected by hand, and nothing of torch's may be uncollectable",
        "after": "import gc; gc.freeze(); gc.disable(); gc.set_debug(gc.DEBUG_UNCOLLECTABLE)",
        "step": "if i % 20 == 0: gc.collect()",
        "end": "print(len(gc.garbage), gc.isenabled(), gc.get_threshold())",
    },
    "compiled": {
        "what": "model and step are compiled by torch.compile (eager), and graphs and breaks are counted",
        "after": "import torch._dynamo; counted = torch._dynamo.testing.CompileCounter(); model = torch.compile(model, backend=counted, fullgraph=True)\ncompiled_step = torch.compile(optimizer.step, backend='eager')",
        "step": "if i % 10 == 0: compiled_step()",
        "end": "print(counted.frame_count, counted.op_count, sum(torch._dynamo.utils.counters['graph_break'].values()), dict(torch._dynamo.utils.counters['unimplemented']))",
        "iterations": 200,
    },
    "nested-backward": {
        "what": "the backward pass runs another backward pass and steps another optimizer, with one thread only",
        "after": (
            "q = torch.nn.Parameter(torch.ones(4)); inner = torch.optim.SGD([q], 0.01)\nclass Nested(torch.autograd.Function):\n"
            "    @staticmethod\n    def forward(ctx, x): return x.clone()\n    @staticmethod\n    def backward(ctx, g):\n"
            "        with torch.enable_grad(): (q * q).sum().backward()\n        inner.step(); inner.zero_grad(); return g\n"
            "plain = model; model = lambda x: Nested.apply(plain(x)); model.parameters = plain.parameters"
        ),
        "end": "print(q.tolist()); model = plain",
    },
    "step-in-hook": {
        "what": "optimizers step in hooks after each gradient",
        "after": "each = {p: torch.optim.SGD([p], 1e-3) for p in model.parameters()}\nfor p in model.parameters(): p.register_post_accumulate_grad_hook(lambda p: (each[p].step(), each[p].zero_grad(set_to_none=False)))",
    },
    "odd-optimizer": {
        "what": "an optimizer has no hash, is equal to nothing, and fails when asked for odd attributes",
        "after": (
            "class Odd(torch.optim.SGD):\n    __hash__ = None\n    def __eq__(self, other): raise ValueError\n    def __bool__(self): raise ValueError\n    def __len__(self): raise ValueError\n"
            "    def __getattr__(self, name): raise KeyError(name)\nfirst = optimizer; optimizer = Odd(model.parameters(), 1e-3)"
        ),
    },
    "odd-loader": {
        "what": "a loader has no length, is falsy, and is iterated again each tenth batch",
        "after": "class Odd(torch.utils.data.DataLoader):\n    def __len__(self): raise ValueError\n    def __bool__(self): raise ValueError\nother = Odd(data, batch_size=4); turns = iter(other)",
        "step": "if i % 10 == 0: turns = iter(other)\nprint(next(turns)[0].sum().item().hex())",
    },
    "own-hooks": {
        "what": "global and own hooks of optimizers run in their order, one is removed, one fails",
        "after": "seen = []\nfrom torch.optim.optimizer import register_optimizer_step_post_hook as post, register_optimizer_step_pre_hook as pre\nhandles = [post(lambda *a: seen.append(1)), pre(lambda *a: seen.append(0)), post(lambda *a: seen.append(2))]; optimizer.register_step_post_hook(lambda *a: seen.append(3))\ndef fails(*a): raise ValueError('mine')",
        "step": "if i == 50: handles[0].remove()\nif i == 60:\n    h = optimizer.register_step_post_hook(fails)\n    try: optimizer.step()\n    except ValueError as e: print(e)\n    h.remove()",
        "end": "print(seen[:8], len(seen), len(torch.optim.optimizer._global_optimizer_pre_hooks))",
    },
    "closures": {
        "what": "LBFGS calls its closure many times a step, and the closure steps another optimizer",
        "after": "many = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=4)\ndef closure():\n    many.zero_grad(); loss = model(x0).pow(2).mean(); loss.backward(); optimizer.step(); return loss",
        "step": "many.step(closure)",
    },
    "audited": {
        "what": "an audit hook refuses sockets, processes and files that are written, to everybody",
        "after": "def audit(event, words):\n    if event in ('socket.__new__', 'subprocess.Popen', 'os.fork', 'ctypes.dlopen') or event == 'open' and 'w' in str(words[1]): raise RuntimeError('refused', event)\nsys.addaudithook(audit)",
    },
    "no-imports": {
        "what": "nothing may be imported any more from iteration 10 on",
        "step": "if i == 10:\n    import builtins, traceback, linecache\n    def no(name, *a): raise ImportError(name)\n    kept = builtins.__import__; builtins.__import__ = no",
        "end": "builtins.__import__ = kept",
    },
    "no-modules": {
        "what": "modules of ours are taken out of sys.modules, and the path is emptied",
        "step": "if i == 30:\n    for name in [n for n in sys.modules if n.startswith('eroica')]: del sys.modules[name]\n    sys.path[:] = []; sys.path_hooks[:] = []; sys.path_importer_cache.clear()",
    },
    "no-standard-streams": {
        "what": "sys.stdout and sys.stderr are None, and come back at the end",
        "after": "kept = sys.stdout, sys.stderr; say = sys.stdout.write; import builtins; told = builtins.print; builtins.print = lambda *a, **k: say(' '.join(map(str, a)) + '\\n'); sys.stdout = sys.stderr = None",
        "end": "sys.stdout, sys.stderr = kept; builtins.print = told",
    },
    "all-logged": {
        "what": "every logger writes everything to standard output, and errors of logging are raised",
        "before": "import logging; logging.basicConfig(level=1, stream=sys.stdout, format='%(name)s %(message)s'); logging.captureWarnings(True); logging.getLogger('matplotlib').disabled = True",
    },
    "odd-clocks": {
        "what": "time's functions are replaced: Decimals, backwards, errors",
        "after": "import time, decimal, itertools; back = itertools.count(10**9, -1)\ndef broken(): raise OSError\ntime.time = lambda: decimal.Decimal(next(back)); time.monotonic = broken; time.perf_counter = lambda: 'now'; time.monotonic_ns = broken; time.time_ns = broken",
    },
    "no-timeouts": {
        "what": "sockets time out at once, in all of the process",
        "after": "import socket; socket.setdefaulttimeout(1e-9)",
    },
    "exhausted": {
        "what": "the heap is exhausted: MemoryError comes at iteration 40, and the training goes on",
        "step": "if i == 40:\n    try: b'x' * (1 << 62)\n    except (MemoryError, OverflowError) as e: print(type(e))",
    },
    "sub-interpreter": {
        "what": "a sub-interpreter runs inside the window",
        "after": "import _xxsubinterpreters as subs",
        "step": "if i % 30 == 12: one = subs.create(); subs.run_string(one, 'import json, threading; threading.Thread(target=int).start()'); subs.destroy(one)",
    },
    "shown-path": {
        "what": "sys.path, sys.flags, import hooks and names of site are shown",
        "end": "print([p for p in sys.path if 'eroica' not in p], sys.flags, len(sys.path_hooks), [getattr(m, '__name__', type(m).__name__) for m in sys.meta_path], sys.gettrace(), sys.getprofile(), sys.getswitchinterval(), sys.getdlopenflags())",
    },
    "no-dump": {
        "what": "the process cannot be traced (PR_SET_DUMPABLE 0), and gains no privileges",
        "after": "import ctypes; libc = ctypes.CDLL(None); print(libc.prctl(4, 0, 0, 0, 0), libc.prctl(38, 1, 0, 0, 0))",
    },
    "forbidden-calls": {
        "what": "a seccomp filter kills who makes a socket or starts a program, from iteration 10 on",
        "step": (
            "if i == 10:\n    import ctypes, struct\n    code = [(0x20, 0, 0, 0), (0x15, 2, 0, 41), (0x15, 1, 0, 59), (6, 0, 0, 0x7fff0000), (6, 0, 0, 0x80000000)]\n"
            "    kept = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *one) for one in code))\n"
            "    program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(code), ctypes.addressof(kept)))\n"
            "    libc = ctypes.CDLL(None, use_errno=True); libc.prctl(38, 1, 0, 0, 0); print(libc.prctl(22, 2, program, 0, 0))"
        ),
    },
}
