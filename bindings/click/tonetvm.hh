// SPDX-License-Identifier: Apache-2.0
#ifndef CLICK_TONETVM_HH
#define CLICK_TONETVM_HH
#include <click/element.hh>
#include "fromnetvm.hh"
CLICK_DECLS

/*
=c
ToNetvm(FROM [, PORT])

=s netdevices
sends packets as a network function of netvm

=d
Sends packets, from the Ethernet header on, as the NF that the element FROM, a FromNetvm, has attached: out of the port
PORT, or without it to the next hop of the chain. A packet that FROM has emitted leaves in its buffer; one that Click has made,
or that others share, is copied into a buffer of netvm, and without PORT counts as received by the port that FROM's last
packet came by.

=h count read-only
Packets that were sent.
=h copies read-only
How many of these were copied.
=h drops read-only
Packets that were dropped: PORT does not exist, no buffer was free (C<allocate> of the NF), or they did not fit.

=a FromNetvm */

class ToNetvm : public Element { public:

    ToNetvm() CLICK_COLD;
    ~ToNetvm() CLICK_COLD;

    const char *class_name() const { return "ToNetvm"; }
    const char *port_count() const { return PORTS_1_0; }
    const char *processing() const { return PUSH; }

    int configure(Vector<String> &, ErrorHandler *) CLICK_COLD;
    void add_handlers() CLICK_COLD;
    void push(int port, Packet *);

  private:

    bool find_verdict();
    bool send_in_place(Packet *, netlib_packet *);
    bool send_copy(Packet *);

    FromNetvm *_from;
    String _port;
    uint64_t _epoch;
    uint32_t _verdict;
    uint64_t _count, _copies, _drops;

};

CLICK_ENDDECLS
#endif
