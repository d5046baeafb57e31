// SPDX-License-Identifier: Apache-2.0
package netlib

/*
#include <netlib.h>
#include <stdlib.h>
*/
import "C"

import "unsafe"

// Packet is one packet, until the function that got it, or its burst, returns.
type Packet struct {
	// Data are its bytes in shared memory, from the Ethernet header on. They may be changed in place.
	Data    []byte
	Ingress uint16 // number of its ingress port
	Chain   uint16 // number of its chain
	Hop     uint8  // position of this NF in the chain, from 0
	Hash    uint8  // eight bits of the flow's hash, which select a replica

	raw *C.netlib_packet
}

// Prepend adds bytes at the front, whose content is undefined.
func (p *Packet) Prepend(count int) error { return p.changed(C.netlib_prepend(p.raw, C.size_t(count))) }

// Append adds bytes at the end, whose content is undefined.
func (p *Packet) Append(count int) error { return p.changed(C.netlib_append(p.raw, C.size_t(count))) }

// TrimFront removes bytes from the front.
func (p *Packet) TrimFront(count int) error {
	return p.changed(C.netlib_trim_front(p.raw, C.size_t(count)))
}

// Truncate shortens the packet.
func (p *Packet) Truncate(length int) error {
	return p.changed(C.netlib_truncate(p.raw, C.size_t(length)))
}

func (p *Packet) changed(status C.int) error {
	p.Data = bytesOf(p.raw)
	return check(status)
}

func bytesOf(raw *C.netlib_packet) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(raw.data)), int(raw.length))
}

// Endpoint is one thread's: the burst that it received, and the verdicts on its packets. Only that thread uses it.
type Endpoint struct {
	// Packets of the burst.
	Packets []Packet
	// Verdicts on them, Next unless set.
	Verdicts []Verdict

	endpoint *C.netlib_endpoint
	// Apart, as cgo passes C no memory that has Go pointers.
	raw      *[BurstSize]C.netlib_packet
	packets  [BurstSize]Packet
	verdicts [BurstSize]Verdict
}

func newEndpoint(endpoint *C.netlib_endpoint) *Endpoint {
	return &Endpoint{endpoint: endpoint, raw: new([BurstSize]C.netlib_packet)}
}

// Each calls function on every packet of the burst.
func (e *Endpoint) Each(function func(*Packet) Verdict) {
	for n := range e.Packets {
		e.Verdicts[n] = function(&e.Packets[n])
	}
}

// Port is the number of the port with this name.
func (e *Endpoint) Port(name string) (uint16, error) {
	return e.number(name, func(name *C.char, number *C.uint16_t) C.int {
		return C.netlib_port(e.endpoint, name, number)
	})
}

// Role is the number of the role with this name.
func (e *Endpoint) Role(name string) (uint16, error) {
	return e.number(name, func(name *C.char, number *C.uint16_t) C.int {
		return C.netlib_role(e.endpoint, name, number)
	})
}

// Chain is the number of the chain with this name, for SteerToChain.
func (e *Endpoint) Chain(name string) (uint16, error) {
	return e.number(name, func(name *C.char, number *C.uint16_t) C.int {
		return C.netlib_chain(e.endpoint, name, number)
	})
}

// Epoch changes whenever ports, roles or chains change, so that names may have other numbers.
func (e *Endpoint) Epoch() uint64 { return uint64(C.netlib_epoch(e.endpoint)) }

// Count adds to one of the NF's own counters, by its index.
func (e *Endpoint) Count(counter int, by uint64) error {
	return check(C.netlib_count(e.endpoint, C.size_t(counter), C.uint64_t(by)))
}

// MessageKind is what a message is about.
type MessageKind int

const (
	// FromNF is a message of another NF of the trust group.
	FromNF MessageKind = iota
	// Configured says that a new configuration is in force.
	Configured
	// Drain says that the NF gets no new flows, and is to end when those that it has have ended.
	Drain
	// Resume says that it gets new flows again.
	Resume
	// Load has the load of the NF's role.
	Load
)

// Message is a message of another NF or of netvmd.
type Message struct {
	Kind     MessageKind
	Role     string // of the sender
	Instance uint32 // of the sender
	Version  uint16 // what the payload means, by agreement of both programs
	Payload  []byte
	Percent  uint16 // of Load
}

// NextMessage is the next message, if there is one now and Options.Messages is set; else nil.
func (e *Endpoint) NextMessage() (*Message, error) {
	var raw C.netlib_message
	status := C.netlib_next_message(e.endpoint, &raw)
	if err := check(status); err != nil || status == 0 {
		return nil, err
	}
	return &Message{
		Kind:     MessageKind(raw.kind),
		Role:     C.GoString(&raw.role[0]),
		Instance: uint32(raw.instance),
		Version:  uint16(raw.version),
		Payload:  C.GoBytes(unsafe.Pointer(&raw.payload[0]), C.int(raw.length)),
		Percent:  uint16(raw.percent),
	}, nil
}

// SendMessage sends a message to all other NFs of a role in this NF's trust group: at most 1024 bytes.
func (e *Endpoint) SendMessage(role string, version uint16, payload []byte) error {
	raw := C.netlib_message{version: C.uint16_t(version), length: C.size_t(len(payload))}
	for n := 0; n < len(role) && n < len(raw.role)-1; n++ {
		raw.role[n] = C.char(role[n])
	}
	for n := 0; n < len(payload) && n < len(raw.payload); n++ {
		raw.payload[n] = C.uint8_t(payload[n])
	}
	return check(C.netlib_send_message(e.endpoint, &raw))
}

// Withdraw withdraws the per-flow verdicts of this thread.
func (e *Endpoint) Withdraw() error { return check(C.netlib_withdraw(e.endpoint)) }

func (e *Endpoint) number(name string, find func(*C.char, *C.uint16_t) C.int) (uint16, error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	var number C.uint16_t
	err := check(find(text, &number))
	return uint16(number), err
}

// receive waits for the next burst for so many microseconds, forever if negative. It is false if the NF must end.
func (e *Endpoint) receive(timeout int64) (bool, error) {
	count := C.netlib_receive(e.endpoint, &e.raw[0], BurstSize, C.int64_t(timeout))
	if count == C.NETLIB_END {
		return false, nil
	}
	if err := check(count); err != nil {
		return false, err
	}
	for n := 0; n < int(count); n++ {
		raw := &e.raw[n]
		e.packets[n] = Packet{
			Data:    bytesOf(raw),
			Ingress: uint16(raw.ingress),
			Chain:   uint16(raw.chain),
			Hop:     uint8(raw.hop),
			Hash:    uint8(raw.hash),
			raw:     raw,
		}
		e.verdicts[n] = Next
	}
	e.Packets, e.Verdicts = e.packets[:count], e.verdicts[:count]
	return true, nil
}

// send gives the packets back, by their verdicts.
func (e *Endpoint) send() error {
	if len(e.Packets) == 0 {
		return nil
	}
	set := C.netlib_set_verdicts(e.endpoint, (*C.uint32_t)(unsafe.Pointer(&e.verdicts[0])), C.size_t(len(e.Packets)))
	e.Packets, e.Verdicts = nil, nil
	C.netlib_send(e.endpoint)
	return check(set)
}
