// SPDX-License-Identifier: Apache-2.0
// Package netlib lets a Go program be a network function (NF) of netvm, over libnetlib's C ABI. Packets are slices of
// shared memory: nothing is copied.
//
//	func main() {
//		err := netlib.Run(netlib.Options{Name: "short-only"}, func(packet *netlib.Packet) netlib.Verdict {
//			if len(packet.Data) <= 1000 {
//				return netlib.Next
//			}
//			return netlib.Drop
//		})
//		...
//	}
package netlib

/*
#cgo pkg-config: netlib
#include <netlib.h>
#include <stdlib.h>
*/
import "C"

import (
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

// BurstSize is the most packets that an endpoint receives together.
const BurstSize = 32

// Verdict says what happens to a packet.
type Verdict uint32

const (
	// Next sends the packet to the next hop of its chain, or after the last hop to the chain's output.
	Next Verdict = 0
	// Drop discards the packet.
	Drop Verdict = 0x10000
	// SteerBack sends the packet to the next hop, and the rest of its flow on the way on which no NF has steered it.
	SteerBack Verdict = 0x90000
)

// ToPort sends the packet out of the port with this number.
func ToPort(port uint16) Verdict { return 0x20000 | Verdict(port) }

// ToRole sends the packet to an NF of the role with this number.
func ToRole(role uint16) Verdict { return 0x30000 | Verdict(role) }

// DropFlow discards the packet and the rest of its flow, until it has been idle for so many seconds.
func DropFlow(seconds uint16) Verdict { return 0x40000 | Verdict(seconds) }

// SkipFlow sends the packet to the next hop, and the rest of the flow bypasses this NF, until it has been idle for so
// many seconds.
func SkipFlow(seconds uint16) Verdict { return 0x50000 | Verdict(seconds) }

// SteerToChain sends the packet to the next hop, and the rest of its flow into the chain with this number, straight
// from its ingress port. `steer` of the [[nf]] must list the chain.
func SteerToChain(chain uint16) Verdict { return 0x60000 | Verdict(chain) }

// SteerToRole is SteerToChain to an NF of the role with this number.
func SteerToRole(role uint16) Verdict { return 0x70000 | Verdict(role) }

// SteerToPort is SteerToChain out of the port with this number.
func SteerToPort(port uint16) Verdict { return 0x80000 | Verdict(port) }

// Error is a failed call of libnetlib.
type Error struct {
	// Status is the netlib_status.
	Status int
	// Message is netlib_last_error's.
	Message string
}

func (e *Error) Error() string { return e.Message }

func check(status C.int) error {
	if status < C.NETLIB_END {
		return &Error{int(status), C.GoString(C.netlib_last_error())}
	}
	return nil
}

// Options say how an NF attaches. Name must be set.
type Options struct {
	Name     string
	Role     string   // else $NETVM_ROLE, which netvmd sets, else the name
	Socket   string   // else the one in the environment
	Counters []string // names of the NF's own counters
	Threads  uint16   // else $NETVM_THREADS, which netvmd sets, else 1
	Poll     bool     // spin instead of sleeping
	Offloads bool     // see netlib_options.offloads in netlib.h
	Messages bool     // see Endpoint.NextMessage
}

// Run calls function on every packet until netvmd ends the NF, or SIGTERM or SIGINT does. Each thread calls it with
// packets of its own.
func Run(options Options, function func(*Packet) Verdict) error {
	return RunBurst(options, func(endpoint *Endpoint) { endpoint.Each(function) })
}

// RunBurst is Run for bursts: function gets the endpoint, whose packets and verdicts are those of the burst.
func RunBurst(options Options, function func(*Endpoint)) error {
	// netlib_last_error is the thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	nf, err := attach(options)
	if err != nil {
		return err
	}
	defer C.netlib_detach(nf)

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	ended := make(chan struct{})
	defer close(ended)
	defer signal.Stop(signals)
	go func() {
		select {
		case <-signals:
			C.netlib_stop(nf)
		case <-ended:
		}
	}()

	var threads sync.WaitGroup
	failures := make(chan error, int(C.netlib_threads(nf)))
	for n := C.uint16_t(0); n < C.netlib_threads(nf); n++ {
		endpoint := newEndpoint(C.netlib_get_endpoint(nf, n))
		threads.Add(1)
		go func() {
			defer threads.Done()
			runtime.LockOSThread()
			for {
				more, err := endpoint.receive(-1)
				if err != nil {
					failures <- err
					C.netlib_stop(nf)
				}
				if !more {
					return
				}
				function(endpoint)
				endpoint.send()
			}
		}()
	}
	threads.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

func attach(options Options) (*C.netlib_t, error) {
	var raw C.netlib_options
	if err := check(C.netlib_options_init(&raw)); err != nil {
		return nil, err
	}
	var strings []*C.char
	text := func(s string) *C.char {
		if s == "" {
			return nil
		}
		strings = append(strings, C.CString(s))
		return strings[len(strings)-1]
	}
	defer func() {
		for _, s := range strings {
			C.free(unsafe.Pointer(s))
		}
	}()
	raw.name, raw.role, raw.socket = text(options.Name), text(options.Role), text(options.Socket)
	if count := len(options.Counters); count > 0 {
		list := C.malloc(C.size_t(count) * C.size_t(unsafe.Sizeof(raw.name)))
		defer C.free(list)
		for n, name := range options.Counters {
			unsafe.Slice((**C.char)(list), count)[n] = text(name)
		}
		raw.counters, raw.counter_count = (**C.char)(list), C.size_t(count)
	}
	if options.Threads > 0 {
		raw.threads = C.uint16_t(options.Threads)
	}
	if options.Poll {
		raw.waiting = C.NETLIB_POLL
	}
	if options.Offloads {
		raw.offloads = 1
	}
	if options.Messages {
		raw.messages = 1
	}
	var nf *C.netlib_t
	err := check(C.netlib_attach(&raw, &nf))
	return nf, err
}
