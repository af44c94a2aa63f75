#!/bin/sh
# The driver's own programs.
set -e
. /xio/counters
conversation 10.99.0.1 10.99.0.1
conversation fd99::1 fd99::1 65536
conversation 10.99.1.2 10.99.1.1
conversation soak 10.99.1.2 10.99.1.1 50000
conversation wakes 10.99.1.2 10.99.1.1 500
conversation cycles 10.99.0.1 10.99.0.1 40
conversation direct 10.99.0.1 10.99.0.1
conversation direct 10.99.1.2 10.99.1.1
conversation crowd 10.99.1.2 10.99.1.1 200
conversation crowd-shared 10.99.1.2 10.99.1.1 200
conversation soak-shared 10.99.1.2 10.99.1.1 10000
for server in mio_echo tokio_echo; do
    $server 10.99.1.2:7100 1 &
    conversation ask 10.99.1.1 10.99.1.2:7100 300
    wait $!
done
conversation stages 10.99.0.1 rxe0
# Who may not lock enough memory is told how to.
chmod 666 /dev/infiniband/*
if told=$(su user -c 'ulimit -l 64; /xio/conversation 10.99.0.1 10.99.0.1' 2>&1); then
    echo "64 KiB of locked memory were enough"
    exit 1
fi
echo "$told"
echo "$told" | grep -q 'ulimit -l unlimited'
check_counters
