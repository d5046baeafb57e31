// SPDX-License-Identifier: Apache-2.0
// Command no-telnet is an NF that drops TCP segments to port 23.
package main

import (
	"encoding/binary"
	"fmt"
	"os"

	"netvm.invalid/netlib"
)

const ethernet, tcp, telnet = 14, 6, 23

// verdict reads the packet where it is, in shared memory.
func verdict(packet *netlib.Packet) netlib.Verdict {
	frame := packet.Data
	if len(frame) < ethernet+20 || binary.BigEndian.Uint16(frame[12:]) != 0x0800 || frame[ethernet+9] != tcp {
		return netlib.Next
	}
	header := ethernet + 4*int(frame[ethernet]&15)
	if len(frame) < header+4 || binary.BigEndian.Uint16(frame[header+2:]) == telnet {
		return netlib.Drop
	}
	return netlib.Next
}

func main() {
	if err := netlib.Run(netlib.Options{Name: "no-telnet"}, verdict); err != nil {
		fmt.Fprintf(os.Stderr, "no-telnet: %v\n", err)
		os.Exit(1)
	}
}
