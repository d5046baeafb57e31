// SPDX-License-Identifier: Apache-2.0
// Returns each packet of a memif with its MAC addresses exchanged, by FD.io's gomemif.
//
//	echo slave|master SOCKET
package main

import (
	"log"
	"os"
	"sync"
	"time"

	"github.com/FDio/vpp/extras/gomemif/memif"
)

// What a connection has.
type connection struct {
	quit    chan struct{}
	running sync.WaitGroup
}

func (c *connection) connected(i *memif.Interface) error {
	rx, err := i.GetRxQueue(0)
	if err != nil {
		return err
	}
	tx, err := i.GetTxQueue(0)
	if err != nil {
		return err
	}
	c.quit = make(chan struct{})
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		c.serve(rx, tx)
	}()
	return nil
}

func (c *connection) disconnected(*memif.Interface) error {
	close(c.quit)
	c.running.Wait()
	return nil
}

func (c *connection) serve(rx, tx *memif.Queue) {
	packet := make([]byte, 2048)
	for {
		select {
		case <-c.quit:
			return
		default:
		}
		length, err := rx.ReadPacket(packet)
		if err != nil {
			log.Fatal(err)
		}
		if length < 14 {
			time.Sleep(100 * time.Microsecond)
			continue
		}
		var source [6]byte
		copy(source[:], packet[6:12])
		copy(packet[6:12], packet[:6])
		copy(packet[:6], source[:])
		// Without room, the packet is lost.
		tx.WritePacket(packet[:length])
	}
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: echo slave|master SOCKET")
	}
	socket, err := memif.NewSocket("echo", os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	c := &connection{}
	i, err := socket.NewInterface(&memif.Arguments{
		IsMaster:         os.Args[1] == "master",
		Name:             "echo",
		ConnectedFunc:    c.connected,
		DisconnectedFunc: c.disconnected,
	})
	if err != nil {
		log.Fatal(err)
	}
	if !i.IsMaster() {
		if err := i.RequestConnection(); err != nil {
			log.Fatal(err)
		}
	}
	failed := make(chan error)
	socket.StartPolling(failed)
	for err := range failed {
		log.Print(err)
	}
}
