#!/bin/sh
set -e
. /xio/counters
pingpong
XIO_GOLDEN=/xio/golden roleplay
costs --nocapture
conformance --test-threads=1
check_counters
