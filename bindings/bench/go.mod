module touch

go 1.19

require netvm.invalid/netlib v0.0.0

replace netvm.invalid/netlib => ../go
