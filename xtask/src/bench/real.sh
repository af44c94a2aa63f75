# In real time: raw verbs and ours in turn, both ends spinning on a processor of their own.
set -e
round=0
while [ $round -lt $pairs ]; do
    round=$((round + 1))
    port=$((7200 + round))
    taskset 1 /usr/bin/ib_send_lat -F -d rxe0 -s 64 -n 1000 -p $port >/tmp/raw-server 2>&1 &
    server=$!
    usleep 300000
    taskset 2 /usr/bin/ib_send_lat -F -d rxe0 -s 64 -n 1000 -p $port 10.99.0.1 >/tmp/raw 2>&1
    wait $server
    awk '$1 == 64 && NF >= 9 { print "measure: ib_send_lat 64 " $5 " us" }' /tmp/raw
    : >/tmp/ours-server
    taskset 1 measure serve 10.99.0.1:7100 always 64 >/tmp/ours-server &
    server=$!
    until grep -q listening /tmp/ours-server; do usleep 10000; done
    taskset 2 measure ask 10.99.0.1:7100 always 64 64 1 1000
    wait $server
done
