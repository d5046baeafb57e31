// SPDX-License-Identifier: Apache-2.0
package netlib

import (
	"bytes"
	"testing"
	"time"
)

func simulator(t *testing.T) *Simulator {
	t.Helper()
	simulator, err := NewSimulator([]string{"lan", "wan"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return simulator
}

func TestPacketsThatItMakes(t *testing.T) {
	simulator := simulator(t)
	answer := func(packet *Packet) Verdict {
		made, err := packet.Alloc(60)
		if err != nil {
			t.Fatal(err)
		}
		copy(made.Data, "hi")
		if err := made.Append(2); err != nil || len(made.Data) != 62 {
			t.Fatal(err, len(made.Data))
		}
		if err := made.Send(ToPort(packet.Ingress)); err != nil {
			t.Fatal(err)
		}
		if made.Release() == nil {
			t.Fatal("it was sent")
		}
		other, err := packet.Clone()
		if err != nil || !bytes.Equal(other.Data, packet.Data) || other.Release() != nil {
			t.Fatal(err)
		}
		return Drop
	}
	for n := 0; n < 500; n++ {
		dropped, err := simulator.Inject(answer, 1, make([]byte, 60))
		if err != nil || dropped.Verdict != Drop {
			t.Fatal(dropped, err)
		}
		made, err := simulator.Taken()
		if err != nil || len(made) != 1 || made[0].Verdict != ToPort(1) || string(made[0].Data[:2]) != "hi" {
			t.Fatal(made, err)
		}
	}
	if made, err := simulator.Endpoint.Alloc(60); err != nil || made.SetIngress(1) != nil || made.Send(Next) != nil {
		t.Fatal(err)
	}
}

func TestPacketsThatItHolds(t *testing.T) {
	simulator := simulator(t)
	var queue []*OwnedPacket
	delay := func(packet *Packet) Verdict {
		held, err := packet.Hold()
		if err != nil {
			t.Fatal(err)
		}
		if queue = append(queue, held); len(queue) > 2 {
			if err := queue[0].Send(Next); err != nil {
				t.Fatal(err)
			}
			queue = queue[1:]
		}
		return Drop
	}
	for n := 0; n < 200; n++ {
		sent, err := simulator.Inject(delay, 0, bytes.Repeat([]byte{byte(n)}, 60))
		if err != nil || (n < 2) != (sent.Data == nil) || n >= 2 && sent.Data[0] != byte(n-2) {
			t.Fatal(n, sent, err)
		}
	}
	if err := simulator.SetTime(7 * time.Second); err != nil || simulator.Endpoint.Now() != 7*time.Second {
		t.Fatal(err)
	}
}
