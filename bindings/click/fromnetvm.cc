// SPDX-License-Identifier: Apache-2.0
/* FromNetvm: packets of netvm for a Click configuration. */

#include <click/config.h>
#include "fromnetvm.hh"
#include <click/args.hh>
#include <click/error.hh>
#include <click/router.hh>
#include <click/standard/scheduleinfo.hh>
CLICK_DECLS

// Bursts without a packet before it sleeps.
static const unsigned POLLS = 64;

FromNetvm::FromNetvm()
    : _name("click"), _wait(1000), _nf(0), _endpoint(0), _free(0), _epoch(~(uint64_t)0), _idle(0), _ingress(0), _count(0),
      _drops(0), _task(this) {
}

FromNetvm::~FromNetvm() {
}

int FromNetvm::configure(Vector<String> &conf, ErrorHandler *errh) {
    Args args(this, errh);
    args.bind(conf).read("NAME", _name).read("ROLE", _role).read("SOCKET", _socket).read("WAIT", _wait);
    if (args.consume() < 0)
        return -1;
    _names = conf;
    if (_names.size() > 0 && noutputs() != _names.size() && noutputs() != _names.size() + 1)
        return errh->error("%d ports need as many outputs, or one more for other ports; there are %d", _names.size(), noutputs());
    if (_names.size() == 0 && noutputs() != 1)
        return errh->error("without names of ports there is one output");
    return 0;
}

int FromNetvm::initialize(ErrorHandler *errh) {
    netlib_options options;
    netlib_options_init(&options);
    options.name = _name.c_str();
    options.role = _role ? _role.c_str() : 0;
    options.socket = _socket ? _socket.c_str() : 0;
    options.threads = 1;
    if (netlib_attach(&options, &_nf) != NETLIB_OK)
        return errh->error("cannot attach to netvmd: %s", netlib_last_error());
    _endpoint = netlib_get_endpoint(_nf, 0);
    ScheduleInfo::initialize_task(this, &_task, true, errh);
    return 0;
}

void FromNetvm::cleanup(CleanupStage) {
    // netvmd takes back what Click still holds.
    netlib_detach(_nf);
    _nf = 0;
    _endpoint = 0;
    while (Held *held = _free) {
        _free = held->next;
        delete held;
    }
}

// The ports' numbers change when netvm's configuration does.
void FromNetvm::look_ports_up() {
    _epoch = netlib_epoch(_endpoint);
    _ports.assign(_names.size(), -1);
    for (int i = 0; i < _names.size(); i++) {
        uint16_t port;
        if (netlib_port(_endpoint, _names[i].c_str(), &port) == NETLIB_OK)
            _ports[i] = port;
    }
}

int FromNetvm::output_of(uint16_t ingress) const {
    for (int i = 0; i < _ports.size(); i++)
        if (_ports[i] == ingress)
            return i;
    return _ports.size() < noutputs() ? _ports.size() : -1;
}

Packet *FromNetvm::hold(netlib_packet *received) {
    Held *held = _free;
    if (held)
        _free = held->next;
    else
        held = new Held;
    held->owner = this;
    if (netlib_hold(received, &held->packet) == NETLIB_OK) {
        // Click may use all of the buffer.
        int headroom = netlib_headroom(&held->packet), tailroom = netlib_tailroom(&held->packet);
        WritablePacket *p =
            Packet::make(held->packet.data, held->packet.length, release, held, headroom, tailroom);
        if (p) {
            p->timestamp_anno().assign_now();
            p->set_mac_header(p->data());
            return p;
        }
        netlib_release(&held->packet);
    }
    held->next = _free;
    _free = held;
    return 0;
}

// Click has no further use for a packet's bytes.
void FromNetvm::release(unsigned char *, size_t, void *argument) {
    Held *held = static_cast<Held *>(argument);
    FromNetvm *owner = held->owner;
    if (!owner->_endpoint) {
        delete held;
        return;
    }
    netlib_release(&held->packet);
    held->next = owner->_free;
    owner->_free = held;
}

netlib_packet *FromNetvm::of(Packet *p) {
    if (p->buffer_destructor() != release || p->shared())
        return 0;
    return &static_cast<Held *>(p->destructor_argument())->packet;
}

void FromNetvm::disown(Packet *p) {
    Held *held = static_cast<Held *>(p->destructor_argument());
    p->reset_buffer();
    held->next = _free;
    _free = held;
}

bool FromNetvm::run_task(Task *) {
    netlib_packet packets[NETLIB_BURST];
    int64_t timeout = _idle < POLLS ? 0 : _wait;
    int count = netlib_receive(_endpoint, packets, NETLIB_BURST, timeout);
    if (count < 0) {
        if (count != NETLIB_END)
            click_chatter("%s: %s", declaration().c_str(), netlib_strerror(count));
        router()->please_stop_driver();
        return false;
    }
    _idle = count > 0 ? 0 : _idle + 1;
    if (netlib_epoch(_endpoint) != _epoch)
        look_ports_up();
    for (int n = 0; n < count; n++) {
        _ingress = packets[n].ingress;
        int output = _names.size() > 0 ? output_of(_ingress) : 0;
        Packet *p = output >= 0 ? hold(&packets[n]) : 0;
        if (!p) {
            netlib_set_verdict(&packets[n], NETLIB_DROP);
            _drops++;
            continue;
        }
        _count++;
        this->output(output).push(p);
    }
    netlib_send(_endpoint);
    _task.fast_reschedule();
    return count > 0;
}

void FromNetvm::add_handlers() {
    add_data_handlers("count", Handler::f_read, &_count);
    add_data_handlers("drops", Handler::f_read, &_drops);
    add_task_handlers(&_task);
}

CLICK_ENDDECLS
ELEMENT_REQUIRES(userlevel)
EXPORT_ELEMENT(FromNetvm)
