#!/bin/sh
# The driver's own programs; and nothing was ever sent that the receiver had no buffer for.
set -e
conversation 10.99.0.1 10.99.0.1
conversation fd99::1 fd99::1 65536
conversation 10.99.1.2 10.99.1.1
for device in rxe0 rxea rxeb; do
    for counter in send_rnr_err rcvd_rnr_err send_err; do
        count=$(cat /sys/class/infiniband/$device/ports/1/hw_counters/$counter)
        echo "verbs: $device $counter $count"
        [ "$count" = 0 ]
    done
done
# Nothing of the driver is left with the kernel.
left=$(/usr/bin/rdma resource show qp | grep -c 'type RC' || true)
echo "verbs: $left queue pairs left"
[ "$left" = 0 ]
