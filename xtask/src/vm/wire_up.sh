#!/bin/sh
# Routes and neighbours of the wire. They go when an end goes down; run again when it is up.
ip=/usr/bin/ip
mac() { cat "/sys/class/net/$1/address"; }
$ip link set va up && $ip link set vb up &&
    $ip route replace 10.99.1.2 dev va src 10.99.1.1 table 11 &&
    $ip route replace 10.99.1.1 dev vb src 10.99.1.2 table 12 &&
    $ip neigh replace 10.99.1.2 dev va lladdr "$(mac vb)" nud permanent &&
    $ip neigh replace 10.99.1.1 dev vb lladdr "$(mac va)" nud permanent
