#!/bin/sh
set -e
. /xio/counters
conformance --test-threads=1
check_counters
