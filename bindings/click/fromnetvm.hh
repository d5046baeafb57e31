// SPDX-License-Identifier: Apache-2.0
#ifndef CLICK_FROMNETVM_HH
#define CLICK_FROMNETVM_HH
#include <click/element.hh>
#include <click/task.hh>
#include <click/vector.hh>
#include <netlib.h>
CLICK_DECLS

/*
=c
FromNetvm([PORT, ..., I<keywords> NAME, ROLE, SOCKET, WAIT])

=s netdevices
receives packets as a network function of netvm

=d
Attaches to netvmd as a network function (NF), and emits the packets that its role receives, from the Ethernet header on.
They stay in netvm's buffers: nothing is copied, and ToNetvm sends the same buffers.

Each argument is the name of a port of netvm. A packet that was received by the first one leaves by output 0, and so on;
packets of other ports leave by one more output, or without it are dropped. Without arguments, all packets leave by output 0.

The configuration of the NF needs C<hold>, the most packets that Click may have at a time, in all queues together, and
C<allocate> for packets that Click makes. FromNetvm drops what exceeds C<hold>.

Keyword arguments are:

=over 8

=item NAME

The NF's name, for people. Default is "click".

=item ROLE

The role that it serves. Default is $NETVM_ROLE, which netvmd sets, else the name.

=item SOCKET

The socket of netvmd. Default is the one in the environment.

=item WAIT

Longest sleep in microseconds while there are no packets, after which timers are served. A packet ends it. Default is 1000; 0
polls.

=back

A configuration has one FromNetvm, and everything from it to ToNetvm must run in one thread of Click, as it does by default.

=h count read-only
Packets that were emitted.
=h drops read-only
Packets that were dropped: too many were held, or their port is none of those named.

=a ToNetvm */

class FromNetvm : public Element { public:

    FromNetvm() CLICK_COLD;
    ~FromNetvm() CLICK_COLD;

    const char *class_name() const { return "FromNetvm"; }
    const char *port_count() const { return "0/1-"; }
    const char *processing() const { return PUSH; }

    int configure(Vector<String> &, ErrorHandler *) CLICK_COLD;
    int initialize(ErrorHandler *) CLICK_COLD;
    void cleanup(CleanupStage) CLICK_COLD;
    void add_handlers() CLICK_COLD;
    bool run_task(Task *);

    netlib_endpoint *endpoint() const { return _endpoint; }
    // The port of the last packet that was received.
    uint16_t ingress() const { return _ingress; }
    // The packet of netvm that has a packet's bytes; null if Click has copied them, or shares them.
    static netlib_packet *of(Packet *);
    // Notes that a packet's buffer has another owner.
    void disown(Packet *);

  private:

    // A packet of netvm that Click has.
    struct Held {
        netlib_packet packet;
        FromNetvm *owner;
        Held *next;
    };

    static void release(unsigned char *, size_t, void *);
    Packet *hold(netlib_packet *);
    void look_ports_up();
    int output_of(uint16_t ingress) const;

    Vector<String> _names;
    Vector<int> _ports;
    String _name, _role, _socket;
    uint32_t _wait;
    netlib_t *_nf;
    netlib_endpoint *_endpoint;
    Held *_free;
    uint64_t _epoch;
    unsigned _idle;
    uint16_t _ingress;
    uint64_t _count, _drops;
    Task _task;

};

CLICK_ENDDECLS
#endif
