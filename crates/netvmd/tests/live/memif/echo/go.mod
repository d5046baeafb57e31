module echo

go 1.21

// The last release of gomemif that the Go module proxy has.
require github.com/FDio/vpp v1.0.1-0.20200715183738-b1500e9fffa8
