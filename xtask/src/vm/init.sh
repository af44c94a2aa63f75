#!/bin/sh
# The first process of the machine: mounts, modules, devices, then the job, then power off.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox mkdir -p /dev/shm /dev/pts
/bin/busybox mount -t tmpfs tmpfs /dev/shm
/bin/busybox mount -t tmpfs tmpfs /tmp
/bin/busybox mount -t devpts devpts /dev/pts
/bin/busybox --install -s /bin
export PATH=/xio:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=linux
cd /root
stty -onlcr </dev/console
ulimit -l unlimited
ulimit -n 65536
hostname xio

# Tells the host how it ended, and ends. qemu leaves with (status << 1) | 1, of which 8 bits stay,
# so the full number goes out as text too.
finish() {
    read -r uptime _ </proc/uptime
    echo "xio-vm: end $uptime $1"
    stty -onlcr </dev/console
    status=$1
    [ "$status" -le 127 ] || status=127
    printf "\\$(printf %o "$status")" | dd of=/dev/port bs=1 seek=244 conv=notrunc 2>/dev/null
    poweroff -f
}

# A step of bringing up that fails ends the machine: tests on half a machine mislead.
must() {
    "$@" && return
    echo "xio-vm: failed: $*"
    finish 125
}

# The shell has an ip of its own, which cannot do all of this.
ip=/usr/bin/ip
rdma=/usr/bin/rdma

while read -r module || [ -n "$module" ]; do
    must insmod "/modules/$module"
done </modules/order

# A device answers a large READ all at once. A packet that finds no room here is not only sent again
# after seconds: it is also counted as if a receive had been missing.
echo 100000 >/proc/sys/net/core/netdev_max_backlog

must $ip link set lo up

# Loopback: one device, both ends of a conversation on it.
must $ip link add v0 mtu 9000 type veth peer name v1 mtu 9000
must $ip addr add 10.99.0.1/24 dev v0
must $ip addr add fd99::1/64 dev v0 nodad
must $ip addr add 10.99.0.2/24 dev v1
must $ip link set v0 up
must $ip link set v1 up
must $rdma link add rxe0 type rxe netdev v0

# A wire: two devices, and what goes from one to the other leaves on one end and comes in at the
# other. Both addresses are this machine's, so routes by rule must come before the local table.
must $ip link add va mtu 9000 type veth peer name vb mtu 9000
must $ip addr add 10.99.1.1/32 dev va
must $ip addr add 10.99.1.2/32 dev vb
for end in va vb; do
    echo 1 >/proc/sys/net/ipv4/conf/$end/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$end/rp_filter
    echo 2 >/proc/sys/net/ipv4/conf/$end/arp_ignore
    must $ip link set $end up
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
must $ip rule add pref 5 iif va lookup local
must $ip rule add pref 6 iif vb lookup local
must $ip rule add pref 10 to 10.99.1.2 lookup 11
must $ip rule add pref 11 to 10.99.1.1 lookup 12
must $ip rule add pref 100 lookup local
must $ip rule del pref 0

# A wire keeps its order. Two processors that take in what one end sends do not, and soft-RoCE, which
# has to READ again what came out of order, may stop in the middle of that for ever: it neither tries
# again nor tells.
for queue in /sys/class/net/v[01ab]/queues/rx-*; do
    must sh -c "echo 1 >$queue/rps_cpus"
done
must /xio/wire-up
must $rdma link add rxea type rxe netdev va
must $rdma link add rxeb type rxe netdev vb

read -r uptime _ </proc/uptime
echo "xio-vm: begin $uptime"
if [ -e /job/shell ]; then
    stty onlcr </dev/console
    setsid cttyhack sh
else
    /job/run </dev/null
fi
finish $?
