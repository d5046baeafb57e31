// SPDX-License-Identifier: Apache-2.0
// Command touch is the NF of `./dev bench bindings` in Go: it reads the first byte of each packet, and sends it on.
package main

import (
	"fmt"
	"os"

	"netvm.invalid/netlib"
)

var seen byte

func main() {
	err := netlib.Run(netlib.Options{Name: "touch", Poll: true}, func(packet *netlib.Packet) netlib.Verdict {
		seen = packet.Data[0]
		return netlib.Next
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "touch: %v\n", err)
		os.Exit(1)
	}
}
