#!/bin/sh
# The command over queue pairs: a server and a client as two processes.
set -e
. /xio/counters

fail() {
    echo "cli: $*"
    cat /tmp/words /tmp/told 2>/dev/null || true
    exit 1
}

# Starts a server; its address is in $url. Arguments: the program, and what serve is told.
serve() {
    program=$1
    shift
    : >/tmp/words
    $program serve "$@" --json >/tmp/served 2>/tmp/words &
    server=$!
    tries=0
    until grep -q '^listening at' /tmp/words; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || fail "no server at $*"
        usleep 50000
    done
    url=$(sed -n 's/^listening at \([^ ]*\).*/\1/p' /tmp/words)
}

# Ends the server, and checks that it counted so many requests and one-ways.
stop() {
    kill -INT $server
    wait $server || fail "the server did not close in time"
    grep -q "\"requests\":$1,\"answered\":$1,\"unanswered\":0,\"one_ways\":$2," /tmp/served ||
        fail "not $1 requests and $2 one-ways: $(cat /tmp/served)"
    grep -q '"damaged":0,' /tmp/served || fail "damaged: $(cat /tmp/served)"
}

# Pings, and adds to $requests or $one_ways. Arguments: the program, how many, and what else ping
# is told.
ping() {
    program=$1 count=$2
    shift 2
    $program ping "$url" --count "$count" --json "$@" >/tmp/told 2>&1 || fail "ping $*"
    case "$*" in
    *--one-way*) one_ways=$((one_ways + count)) ;;
    *) requests=$((requests + count)) ;;
    esac
    grep -q '"lost":0,"duplicated":0,' /tmp/told || fail "ping $*"
    grep -q '"rnr":0}' /tmp/told || fail "a receive was missing: ping $*"
}

# Every size on both sides of a limit: as a request, as an answer, and both ways, each byte compared.
# Arguments: the program, and a size that is tried too.
sizes() {
    for shape in 0:100 1:100 64:200 4096:50 8192:50 8193:50 65536:20 1048576:4 "$2:1"; do
        size=${shape%:*} count=${shape#*:}
        depth=$((count < 16 ? count : 16))
        ping "$1" $count --size $size --depth $depth
        ping "$1" $count --size $size --reply-size 0
        ping "$1" $count --size 0 --reply-size $size --depth $depth
    done
}

for place in 10.99.0.1 10.99.1.2; do
    requests=0 one_ways=0
    serve xio "rdma://$place:0"
    # The largest over the wire only: it takes most of the time.
    case $place in 10.99.1.*) largest=67108864 ;; *) largest=4194304 ;; esac
    sizes xio $largest
    ping xio 1000 --one-way --receipt --depth 32
    ping xio 40 --one-way --receipt --size 65536 --depth 8
    ping xio 500 --one-way
    ping xio 1000 --depth 64 --spin never
    ping xio 100 --spin always
    ping xio 100 --interval 2ms --spin 1ms
    stop $requests $one_ways
    echo "cli: $place: $requests requests and $one_ways one-ways, nothing lost or doubled"
done
tail -n 1 /tmp/told

# The other binding, and either with the other.
requests=0 one_ways=0
serve xio-dlopen rdma://10.99.1.1:0
ping xio-dlopen 500 --depth 8
ping xio 500 --size 65536 --depth 8
stop $requests $one_ways
echo "cli: both bindings, with each other too"

# A client that is not the command, and takes every way there is for data.
serve xio rdma://10.99.1.2:0 --reply BIGR=20000 --reply BIG2=20000 --reply-size 0
guest "${url#rdma://}" || fail "a client that is not the command"
stop 306 101

# What entered either endpoint, fed to the protocol again, gives the same outputs line by line.
requests=0 one_ways=0
serve xio rdma://10.99.1.2:0 --record /tmp/served.rec --record-log /tmp/served.log
ping xio 500 --depth 16 --record /tmp/asked.rec --record-log /tmp/asked.log
ping xio 20 --size 65536 --depth 4
stop $requests $one_ways
for side in served asked; do
    xio replay /tmp/$side.rec >/tmp/replayed || fail "replay: $(tail -n 1 /tmp/replayed)"
    # Behind the heading, before the verdict.
    sed '1,/^$/d' /tmp/replayed | sed '/^$/,$d' | cmp - /tmp/$side.log || fail "another $side"
    echo "cli: $side: $(wc -l </tmp/$side.log) lines replayed"
done

# A server that refuses, and one that sends elsewhere.
serve xio rdma://10.99.0.1:0 --reject 7
xio ping "$url" >/tmp/told 2>&1 && fail "a rejected client succeeded"
grep -q 'rejected by the peer: status 7' /tmp/told || fail "the reason of a rejection"
stop 0 0
xio serve rdma://10.99.1.2:7321 >/tmp/goal 2>&1 &
goal=$!
requests=0 one_ways=0
serve xio rdma://10.99.1.2:0 --redirect rdma://10.99.1.2:7321
ping xio 20
stop 0 0
kill -INT $goal
wait $goal
grep -q '20 requests answered' /tmp/goal || fail "the goal of a redirection: $(cat /tmp/goal)"

# Nobody there, and an address that no device has.
xio ping rdma://10.99.1.2:7444 >/tmp/told 2>&1 && fail "nobody answered"
grep -q 'start a server with `xio serve rdma://10.99.1.2:7444`' /tmp/told || fail "advice"
xio serve rdma://127.0.0.1:0 >/tmp/told 2>&1 && fail "loopback has no device"
grep -q 'xio devices' /tmp/told || fail "advice where no device has the address"

xio demo --over rdma --requests 2000 --json >/tmp/told || fail "the demo"
grep -q '"driver":"rdma","requests":2000,"responses":2000,"one_ways":200,"receipts":200,"lost":0,"duplicated":0' /tmp/told ||
    fail "the demo"
cat /tmp/told

for device in /sys/class/infiniband/*; do
    late=$(cat $device/ports/1/hw_counters/rcvd_seq_err)
    [ "$late" = 0 ] || fail "$late packets out of order at $device: the wire is not as it should be"
done

# Devices, and what is wrong with one.
xio devices
xio devices --json >/tmp/told
[ "$(grep -o '"usable":true' /tmp/told | wc -l)" = 3 ] || fail "three devices can be used"
/usr/bin/ip link set v0 down
xio devices >/tmp/told || fail "two of three devices can be used"
grep -A 1 '^rxe0: cannot be used' /tmp/told | grep 'port 1 is DOWN.*ip link set v0 up' ||
    fail "a port that is down"
/usr/bin/ip link set v0 up
/usr/bin/ip addr del 10.99.1.1/32 dev va
xio devices >/tmp/told || fail "two of three devices can be used"
grep -A 1 '^rxea: cannot be used' /tmp/told | grep 'ip addr add ADDRESS/LENGTH dev va' ||
    fail "a port without address"
chmod 666 /dev/infiniband/*
su user -c 'ulimit -l 64; /xio/xio devices' >/tmp/told && fail "64 KiB of locked memory"
grep 'ulimit -l unlimited' /tmp/told || fail "a limit of memory"
check_counters

# No right to the device, then no device, then no library.
chmod 600 /dev/infiniband/*
su user -c '/xio/xio devices' >/tmp/told && fail "a device without the right to it"
cat /tmp/told
for device in rxe0 rxea rxeb; do /usr/bin/rdma link delete $device; done
for program in xio xio-dlopen; do
    $program devices --json >/tmp/told && fail "a machine without devices"
    grep -q '"devices":\[\],"why":"no RDMA device.*rdma link add rxe0' /tmp/told ||
        fail "advice where there is no device"
    $program ping rdma://10.99.1.2:7444 >/tmp/told 2>&1 && fail "ping without a device"
    grep -q 'modprobe rdma_rxe' /tmp/told || fail "advice where there is no device"
done
find / -xdev -name 'libibverbs.so*' -exec rm {} +
xio-dlopen devices >/tmp/told 2>&1 && fail "a machine without the library"
grep 'apt-get install rdma-core' /tmp/told || fail "advice where there is no library"
echo "cli: ok"
