// SPDX-License-Identifier: Apache-2.0
package netlib

/*
#include <netlib.h>
#include <stdlib.h>
*/
import "C"

import (
	"runtime"
	"time"
	"unsafe"
)

// Outcome is what the NF did with a packet.
type Outcome struct {
	Verdict Verdict
	Data    []byte
}

// Simulator tests an NF without netvmd: the same rings and memory, an engine that does nothing else.
type Simulator struct {
	// Endpoint is the NF's only one.
	Endpoint *Endpoint

	sim  *C.netlib_sim
	rest []Outcome
}

// NewSimulator numbers ports and roles in the order of the lists.
func NewSimulator(ports, roles []string) (*Simulator, error) {
	portList, rolesList := cNames(ports), cNames(roles)
	defer freeNames(portList)
	defer freeNames(rolesList)
	var sim *C.netlib_sim
	if err := check(C.netlib_sim_new(&portList[0], &rolesList[0], &sim)); err != nil {
		return nil, err
	}
	simulator := &Simulator{Endpoint: newEndpoint(C.netlib_sim_endpoint(sim)), sim: sim}
	runtime.SetFinalizer(simulator, func(s *Simulator) { C.netlib_sim_free(s.sim) })
	return simulator, nil
}

// NameChains gives chains names, numbered in the order of the list.
func (s *Simulator) NameChains(chains []string) error {
	list := cNames(chains)
	defer freeNames(list)
	return check(C.netlib_sim_name_chains(s.sim, &list[0]))
}

// Inject gives the frame to the function, and returns the outcome.
func (s *Simulator) Inject(function func(*Packet) Verdict, ingress uint16, frame []byte) (Outcome, error) {
	if len(frame) == 0 {
		frame = make([]byte, 0, 1)
	}
	start := (*C.uint8_t)(unsafe.Pointer(&frame[:1][0]))
	if err := check(C.netlib_sim_put(s.sim, C.uint16_t(ingress), start, C.size_t(len(frame)))); err != nil {
		return Outcome{}, err
	}
	if _, err := s.Endpoint.receive(0); err != nil {
		return Outcome{}, err
	}
	s.Endpoint.Each(function)
	if err := s.Endpoint.send(); err != nil {
		return Outcome{}, err
	}
	sent, err := s.Taken()
	if err != nil || len(sent) == 0 {
		return Outcome{}, err
	}
	s.rest = append(s.rest, sent[1:]...)
	return sent[0], nil
}

// Taken is all that the NF has sent and Inject has not returned: what it has made, and what it had held.
func (s *Simulator) Taken() ([]Outcome, error) {
	sent := s.rest
	s.rest = nil
	for {
		room := make([]byte, 16384)
		length, verdict := C.size_t(len(room)), C.uint32_t(0)
		taken := C.netlib_sim_take(s.sim, (*C.uint8_t)(unsafe.Pointer(&room[0])), &length, &verdict)
		if err := check(taken); err != nil {
			return nil, err
		}
		if taken == 0 {
			return sent, nil
		}
		sent = append(sent, Outcome{Verdict(verdict), room[:length]})
	}
}

// SetTime sets what Now returns from now on.
func (s *Simulator) SetTime(now time.Duration) error {
	return check(C.netlib_sim_set_time(s.sim, C.uint64_t(now.Nanoseconds())))
}

// Counter is one of the NF's own counters.
func (s *Simulator) Counter(index int) uint64 {
	return uint64(C.netlib_sim_counter(s.sim, C.size_t(index)))
}

// cNames is a list of C strings that ends with NULL.
func cNames(names []string) []*C.char {
	list := make([]*C.char, 0, len(names)+1)
	for _, name := range names {
		list = append(list, C.CString(name))
	}
	return append(list, nil)
}

func freeNames(list []*C.char) {
	for _, name := range list {
		C.free(unsafe.Pointer(name))
	}
}
