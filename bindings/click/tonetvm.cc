// SPDX-License-Identifier: Apache-2.0
/* ToNetvm: packets of a Click configuration for netvm. */

#include <click/config.h>
#include "tonetvm.hh"
#include <click/args.hh>
#include <click/error.hh>
CLICK_DECLS

ToNetvm::ToNetvm()
    : _from(0), _epoch(~(uint64_t)0), _verdict(NETLIB_NEXT), _count(0), _copies(0), _drops(0) {
}

ToNetvm::~ToNetvm() {
}

int ToNetvm::configure(Vector<String> &conf, ErrorHandler *errh) {
    return Args(conf, this, errh)
        .read_mp("FROM", ElementCastArg("FromNetvm"), _from)
        .read_p("PORT", _port)
        .complete();
}

// Whether the port exists. Its number changes when netvm's configuration does.
bool ToNetvm::find_verdict() {
    if (!_port)
        return true;
    uint64_t epoch = netlib_epoch(_from->endpoint());
    uint16_t port;
    if (epoch != _epoch) {
        if (netlib_port(_from->endpoint(), _port.c_str(), &port) != NETLIB_OK)
            return false;
        _epoch = epoch;
        _verdict = NETLIB_TO_PORT(port);
    }
    return true;
}

// Makes netvm's packet begin and end where Click's does.
static bool follow(netlib_packet *packet, const Packet *p) {
    const unsigned char *data = p->data();
    if (data < packet->data) {
        if (netlib_prepend(packet, packet->data - data) != NETLIB_OK)
            return false;
    } else if (data > packet->data && netlib_trim_front(packet, data - packet->data) != NETLIB_OK) {
        return false;
    }
    if (p->length() > packet->length)
        return netlib_append(packet, p->length() - packet->length) == NETLIB_OK;
    return p->length() == packet->length || netlib_truncate(packet, p->length()) == NETLIB_OK;
}

bool ToNetvm::send_in_place(Packet *p, netlib_packet *packet) {
    if (!follow(packet, p) || netlib_send_packet(packet, _verdict) != NETLIB_OK)
        return false;
    _from->disown(p);
    return true;
}

bool ToNetvm::send_copy(Packet *p) {
    netlib_packet made;
    if (netlib_alloc(_from->endpoint(), p->length(), &made) != NETLIB_OK)
        return false;
    memcpy(made.data, p->data(), p->length());
    if (!_port)
        netlib_set_ingress(&made, _from->ingress());
    _copies++;
    return netlib_send_packet(&made, _verdict) == NETLIB_OK;
}

void ToNetvm::push(int, Packet *p) {
    netlib_packet *packet = FromNetvm::of(p);
    bool is_sent = find_verdict() && (packet ? send_in_place(p, packet) : send_copy(p));
    (is_sent ? _count : _drops)++;
    p->kill();
}

void ToNetvm::add_handlers() {
    add_data_handlers("count", Handler::f_read, &_count);
    add_data_handlers("copies", Handler::f_read, &_copies);
    add_data_handlers("drops", Handler::f_read, &_drops);
}

CLICK_ENDDECLS
ELEMENT_REQUIRES(userlevel)
EXPORT_ELEMENT(ToNetvm)
