#!/bin/sh
set -e
. /xio/counters
costs --nocapture
conformance --test-threads=1
check_counters
