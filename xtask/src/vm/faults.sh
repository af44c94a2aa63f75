#!/bin/sh
set -e
conversation faults
