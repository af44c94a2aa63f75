#!/bin/sh
# The driver's own programs.
set -e
. /xio/counters
conversation 10.99.0.1 10.99.0.1
conversation fd99::1 fd99::1 65536
conversation 10.99.1.2 10.99.1.1
conversation soak 10.99.1.2 10.99.1.1 5000
conversation wakes 10.99.1.2 10.99.1.1 500
conversation cycles 10.99.0.1 10.99.0.1 40
conversation crowd 10.99.1.2 10.99.1.1 200
check_counters
