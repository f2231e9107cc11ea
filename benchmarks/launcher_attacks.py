"""Attacks on the start of a command, for `benchmarks/attacks.py`: shell code in which `$E` is empty or `eroica run --`.

Each is what somebody may have around a command, or be as a command.
"""

# ruff: noqa: E501 - rows of a table

from __future__ import annotations

PYTHON = "/usr/bin/env python3 -I -c"
SHOW = "sort -z /proc/self/environ | tr '\\0\\n' '\\n|' | grep -avE '^(EROICA_|PYTHONPATH=|_=|E=|F=|PWD=)'"
LIMITED = "$E sh -c 'echo ran; exit 3'"

#: The deed in words, and its code.
LAUNCHES: dict[str, tuple[str, str]] = {
    "names-of-scripts": (
        "variables have the names that scripts use",
        "export name=a value=b first=c self=d here=e hold=f python=g to=h i=j 1x=; $E sh -c "
        "'echo $name$value$first$self$here$hold$python$to$i'",
    ),
    "separators": ("IFS, OPTIND, PS4 and CDPATH are exported", f'IFS=, OPTIND=9 PS4=x CDPATH=/ $E sh -c "{SHOW}"'),
    "odd-names": ("names are no identifiers", f"env my.var=1 a-b=2 '1 2=3' 'é=4' $E sh -c \"{SHOW}\""),
    "functions": ("bash exports functions", "foo() { echo ran $1; }; export -f foo; $E bash -c 'foo one'"),
    "no-environment": ("there is no environment", 'env -i PATH="$PATH" E="$E" sh -c "$E env" | grep -avE "^(EROICA_|PYTHONPATH|E=|F=|PWD)"'),
    "no-locale": ("no locale is set", f"unset LANG LC_ALL LC_CTYPE; $E sh -c \"{SHOW}\""),
    "odd-locale": ("the locale is none", f"export LC_ALL=nowhere LANG=; $E sh -c \"{SHOW}\""),
    "bytes": ("a value is no text", "export X=$(printf '\\377\\376'); $E sh -c 'printf %s \"$X\" | od -c'"),
    "line-breaks": ("values hold line breaks and backslashes", "export X=$(printf 'a\\n\\nb\\\\0\\\\'); $E sh -c 'printf %s \"$X\" | od -c'"),
    "large": ("the environment has 180 kB", "export A=$(head -c 60000 /dev/zero | tr '\\0' a); export B=$A C=$A; $E sh -c 'echo ${#A}${#B}${#C}'"),
    "home-of-another": ("PYTHONHOME is for another Python", f"PYTHONHOME=/nowhere {LIMITED}"),
    "bad-seed": ("PYTHONHASHSEED is no number, all warnings are errors", f"PYTHONHASHSEED=x PYTHONWARNINGS=error {LIMITED}"),
    "modules": ("modules of the names of ours lie on PYTHONPATH", f"mkdir v; for n in click json rich site os; do echo raise SystemExit >v/$n.py; done; PYTHONPATH=v {LIMITED}"),
    "startup-files": ("ENV and BASH_ENV name a script", f"echo 'echo sourced' >rc; ENV=./rc BASH_ENV=./rc {LIMITED}"),
    "bad-library": (
        "a library that ours need is another one",
        f"mkdir bad; echo 'int x;' | cc -shared -fPIC -xc - -o bad/libz.so.1; LD_LIBRARY_PATH=bad {LIMITED}",
    ),
    "options": ("the command has options of our names", "$F sh -c 'echo \"$@\"' sh --out a --job b --set c --json d --quiet -- e"),
    "double-dash": ("the command has a word `--`", "$E sh -c 'echo \"$@\"' -- a -- b"),
    "words": ("words are empty, hold line breaks, are patterns", "$E printf '[%s]' '' 'a b' 'c\nd' '*' '$x' '\\' -- -n"),
    "many-words": ("there are 20,000 words", "$E sh -c 'echo $#' $(seq 20000)"),
    "no-command": ("the command does not exist", "$E /nowhere/command 2>&1 | wc -l; /nowhere/command 2>/dev/null; $E /nowhere/x 2>/dev/null"),
    "no-program": ("the command is a directory", "$E /tmp 2>/dev/null; echo $?"),
    "no-first-line": ("the command is a script without a first line", "echo 'echo ran' >s; chmod +x s; $E ./s"),
    "relative": ("the command is found by an empty part of PATH", "echo '#!/bin/sh\necho mine' >mine; chmod +x mine; PATH=:$PATH $E mine"),
    "descriptors": ("descriptors 3, 9 and 200 are open", "exec 3>a 9>b 200>c; $E sh -c 'echo x >&3; echo y >&9; ls /proc/self/fd/200'; cat a b"),
    "no-streams": ("no stream is open", "$E sh -c 'echo ran >o' <&- >&- 2>&-; cat o"),
    "input": ("the command reads what is piped in", "seq 1000 | $E md5sum"),
    "output": ("the command writes 5 MB", "$E head -c 5000000 /dev/zero | md5sum"),
    "reader-leaves": ("who reads the output leaves", "$E yes | head -n 2"),
    "ignored": ("signals are ignored", "trap '' INT QUIT PIPE XFSZ USR1 TERM; $E grep SigIgn /proc/self/status"),
    "ignored-children": ("ends of children are ignored", "trap '' CHLD; $E grep SigIgn /proc/self/status"),
    "nohup": ("nohup stands in front", "nohup $E sh -c 'echo ran; grep SigIgn /proc/self/status' 2>/dev/null"),
    "killed": ("the command ends by a signal", "$E sh -c 'kill -9 $$'; echo $?"),
    "core-signal": ("the command ends by SIGSEGV", "$E sh -c 'kill -SEGV $$'; echo $?"),
    "timeout": ("a time limit ends it", "timeout 3 $E sleep 30; echo $?"),
    "umask": ("the umask is 077, the niceness 7", "umask 077; nice -n 7 $E sh -c 'umask; nice; touch f; stat -c %a f'"),
    "removed-directory": ("the working directory is removed", "mkdir g; cd g; rmdir ../g; $E sh -c 'echo ran'"),
    "no-temporary": ("TMPDIR and HOME do not exist", f"TMPDIR=/nowhere HOME=/nowhere {LIMITED}"),
    "closed-directory": ("another user may not write here", f"chmod 755 .; E2=${{E:+$E}}; {LIMITED}"),
    "memory-20": ("a process may have 20 MB", f"ulimit -v 20000; {LIMITED}"),
    "memory-90": ("a process may have 90 MB", f"ulimit -v 90000; {LIMITED}"),
    "memory-400": ("a process may have 400 MB", f"ulimit -v 400000; {LIMITED}"),
    "files": ("a process may open 16 files", f"ulimit -n 16; {LIMITED}"),
    "file-size": ("files may have no byte", f"ulimit -f 0; {LIMITED} | cat"),
    "stack": ("the stack has 200 kB", f"ulimit -s 200; {LIMITED}"),
    "no-shm": ("/dev/shm is full", f"unshare -m sh -c 'mount -t tmpfs -o size=4k none /dev/shm; head -c 9999 /dev/zero >/dev/shm/x 2>/dev/null; {LIMITED.replace(chr(39), chr(34))}'"),
    "read-only": ("every file system is read-only", f"unshare -m sh -c 'mount -o remount,bind,ro /; mount -t tmpfs -o ro none /dev/shm; {LIMITED.replace(chr(39), chr(34))}'"),
    "no-proc": ("there is no /proc", f"unshare -m sh -c 'umount -l /proc; {LIMITED.replace(chr(39), chr(34))}'"),
    "twice": ("`eroica run` stands in front of `eroica run`", "$E $E sh -c 'echo ran; exit 3'"),
    "behind-a-link": ("it is called by a link", '[ -z "$E" ] || ln -s "${E%% *}" l; ${E:+./l run --quiet --no-footer --out o --} sh -c "echo ran; exit 3"'),
    "background": ("the command leaves a child behind", "$E sh -c 'sleep 2 & echo $?'; wait"),
    "session": ("a session of its own, no terminal", f"setsid -w {LIMITED}"),
}  # fmt: skip
