#!/bin/sh
# Is the machine what tests take it for? Devices, addresses, and a wire that is one.
fail() {
    echo "smoke: $*"
    exit 1
}

for device in rxe0 rxea rxeb; do
    state=$(cat /sys/class/infiniband/$device/ports/1/state)
    [ "$state" = "4: ACTIVE" ] || fail "$device is $state"
    ibv_devinfo -d $device | grep -q 'active_mtu:.*4096' || fail "$device has a small MTU"
    echo "smoke: $device is up"
done

sent() { cat "/sys/class/net/$1/statistics/tx_packets"; }

# Both ends of a conversation, and whether its packets are seen on the wire.
# Arguments: address of the server, address of the client, end of the wire that must be busy.
talk() {
    before=$(sent "$3")
    rping -s -a "$1" -C 10 -S 1000 -V >/tmp/server 2>&1 &
    server=$!
    tries=0
    until rping -c -a "$1" -I "$2" -C 10 -S 1000 -V >/tmp/client 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 20 ] || { cat /tmp/server /tmp/client; fail "rping from $2 to $1"; }
        usleep 50000
    done
    # Its own end of the last message may come after the peer's disconnect.
    wait $server
    after=$(sent "$3")
    echo "smoke: $2 to $1: 10 rounds, $((after - before)) packets sent on $3"
    [ $((after - before)) -ge "$4" ] || fail "packets from $2 to $1 did not leave by $3"
}

talk 10.99.0.1 10.99.0.1 v0 0
talk 10.99.1.2 10.99.1.1 va 10
talk 10.99.1.1 10.99.1.2 vb 10

for device in rxe0 rxea rxeb; do
    for counter in send_rnr_err rcvd_rnr_err; do
        count=$(cat /sys/class/infiniband/$device/ports/1/hw_counters/$counter)
        echo "smoke: $device $counter $count"
    done
done
