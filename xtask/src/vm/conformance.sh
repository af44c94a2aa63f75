#!/bin/sh
set -e
. /xio/counters
pingpong
costs --nocapture
conformance --test-threads=1
check_counters
