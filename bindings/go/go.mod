module netvm.invalid/netlib

go 1.19
