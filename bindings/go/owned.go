// SPDX-License-Identifier: Apache-2.0
package netlib

/*
#include <netlib.h>
*/
import "C"

import "time"

// OwnedPacket is a packet that the NF has made, copied or holds, over any number of bursts: until it is sent or
// released.
type OwnedPacket struct {
	Packet
	// Apart, as cgo passes C no memory that has Go pointers.
	own *C.netlib_packet
}

// Alloc makes a packet of zero bytes in this one's place: with its ingress port and its hop.
func (p *Packet) Alloc(length int) (*OwnedPacket, error) {
	made := &OwnedPacket{own: new(C.netlib_packet)}
	return made.of(C.netlib_alloc_for(p.raw, C.size_t(length), made.own))
}

// Clone copies the packet.
func (p *Packet) Clone() (*OwnedPacket, error) {
	made := &OwnedPacket{own: new(C.netlib_packet)}
	return made.of(C.netlib_clone(p.raw, made.own))
}

// Hold keeps the packet beyond the burst, if `hold` of the [[nf]] allows a further one. The verdict on it is ignored,
// and p must not be used any more.
func (p *Packet) Hold() (*OwnedPacket, error) {
	made := &OwnedPacket{own: new(C.netlib_packet)}
	return made.of(C.netlib_hold(p.raw, made.own))
}

// Alloc makes a packet of zero bytes without ingress port: send it out of a port.
func (e *Endpoint) Alloc(length int) (*OwnedPacket, error) {
	made := &OwnedPacket{own: new(C.netlib_packet)}
	return made.of(C.netlib_alloc(e.endpoint, C.size_t(length), made.own))
}

// Now is the time since the endpoint's thread attached; in a simulator, what the test has set.
func (e *Endpoint) Now() time.Duration { return time.Duration(C.netlib_now(e.endpoint)) }

// Send sends the packet by a verdict: before the packets of the burst, or at once between bursts. It must not be used
// any more.
func (p *OwnedPacket) Send(verdict Verdict) error {
	p.Data = nil
	return check(C.netlib_send_packet(p.own, C.uint32_t(verdict)))
}

// Release frees the packet. It must not be used any more.
func (p *OwnedPacket) Release() error {
	p.Data = nil
	return check(C.netlib_release(p.own))
}

// SetIngress makes a packet that the NF has made count as received by a port.
func (p *OwnedPacket) SetIngress(port uint16) error {
	p.Ingress = port
	return check(C.netlib_set_ingress(p.own, C.uint16_t(port)))
}

// of is the packet that a call of C has described.
func (p *OwnedPacket) of(status C.int) (*OwnedPacket, error) {
	if err := check(status); err != nil {
		return nil, err
	}
	p.raw = p.own
	p.Data = bytesOf(p.raw)
	p.Ingress, p.Chain = uint16(p.own.ingress), uint16(p.own.chain)
	p.Hop, p.Hash = uint8(p.own.hop), uint8(p.own.hash)
	return p, nil
}
