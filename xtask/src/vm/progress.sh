#!/bin/sh
# How the driver waits. The machine's clock counts instructions: whoever is woken by a timer only,
# or runs for nothing, shows at once.
set -e
. /xio/counters
fail() {
    echo "progress: $*"
    exit 1
}

# Busy: ping-pong of two endpoints in a thread that never sleeps. Each round is two doorbells of the
# provider, which are calls of `write` and are let through; nothing else may be called between the
# marks, clocks and epoll included.
rounds=${rounds:-20000}
/usr/bin/strace -f --seccomp-bpf -e 'trace=!write' -o /tmp/calls \
    measure both 10.99.0.1 64 $rounds
awk '/sched_yield/ { marks++; next } marks == 2 { print; calls++ }
    END { exit !(marks == 3 && calls == 0) }' /tmp/calls ||
    fail "system calls between the marks, or no marks"
echo "progress: no system call of the driver's in $rounds busy rounds"

# Idle: connected, and nothing to do.
for spin in never 20; do
    : >/tmp/words
    measure serve 10.99.1.2:7100 $spin 64 >/tmp/words &
    server=$!
    until grep -q listening /tmp/words; do usleep 10000; done
    measure idle 10.99.1.2:7100 $spin 10 &
    client=$!
    # Nanoseconds that the server was on a processor, at two times in between.
    sleep 4
    read -r before _ </proc/$server/schedstat
    sleep 4
    read -r after _ </proc/$server/schedstat
    echo "idle: 4 s, of which the server ran $(((after - before) / 1000)) us"
    [ $((after - before)) -lt 40000000 ] || fail "an idle server costs too much"
    wait $client || fail "idle costs too much"
    wait $server
done

# Asleep between messages: no round trip may last until a timer ends it.
conversation wakes 10.99.1.2 10.99.1.1 ${wakes:-3000} 200
check_counters
