#!/bin/sh
# One boot whose clock counts instructions: raw verbs and ours in turn, asleep unless something comes.
set -e

# A program of perftest with itself. Arguments: the program, bytes, rounds.
raw() {
    /usr/bin/$1 -e -F -d rxe0 -s $2 -n $3 >/tmp/raw-server 2>&1 &
    server=$!
    usleep 300000
    /usr/bin/$1 -e -F -d rxe0 -s $2 -n $3 10.99.0.1 >/tmp/raw 2>&1
    wait $server
    # Its median is the fifth figure of the last line with figures.
    awk -v name="$1 $2" '$1 == size && NF >= 9 { print "measure: " name " " $5 " us" }' \
        size=$2 /tmp/raw
}

# Arguments: bytes of request and answer, depth, rounds.
ours() {
    : >/tmp/ours-server
    measure serve 10.99.0.1:7100 never $2 >/tmp/ours-server &
    server=$!
    until grep -q listening /tmp/ours-server; do usleep 10000; done
    measure ask 10.99.0.1:7100 never $1 $2 $3 $4
    wait $server
}

raw ib_send_lat 64 2000
ours 64 64 1 5000
raw ib_send_lat 4096 1000
raw ib_send_lat 4196 1000
ours 4096 4096 1 2000
raw ib_read_lat 65536 200
raw ib_send_lat 65536 200
ours 65536 64 1 200
ours 64 65536 1 200
raw ib_read_lat 1048576 20
raw ib_send_lat 1048576 20
ours 1048576 64 1 20
ours 64 1048576 1 20
ours 64 64 32 20000
ours 4096 4096 32 2000
ours 65536 64 32 200
ours 1048576 64 32 64
measure both 10.99.0.1 64 5000
measure both 10.99.0.1 4096 2000
