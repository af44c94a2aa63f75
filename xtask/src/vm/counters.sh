# No packet was ever sent that the receiver had no buffer for, and nothing is left with the kernel.
check_counters() {
    for device in rxe0 rxea rxeb; do
        for counter in send_rnr_err rcvd_rnr_err; do
            count=$(cat /sys/class/infiniband/$device/ports/1/hw_counters/$counter)
            [ "$count" = 0 ] || { echo "$device: $counter $count"; exit 1; }
        done
    done
    left=$(/usr/bin/rdma resource show qp | grep -c 'type RC' || true)
    [ "$left" = 0 ] || { echo "$left queue pairs left"; exit 1; }
    echo "no RNR, no queue pair left"
}
