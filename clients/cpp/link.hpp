// The connecting side of a link, sections 1.1 to 1.4 of the protocol. One thread owns it.
#pragma once

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <sodium.h>
#include <zmq.hpp>

#include "messages.capnp.h"

namespace scaler {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

inline kj::ArrayPtr<const kj::byte> bytes_of(std::string_view text) {
    return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

inline std::string text(kj::ArrayPtr<const kj::byte> bytes) { return {bytes.asChars().begin(), bytes.size()}; }

inline std::string random_bytes(size_t count) {
    std::string bytes(count, '\0');
    randombytes_buf(bytes.data(), count);
    return bytes;
}

// The parts of a message, section 1.1. The payload is part of what was read.
struct Frame {
    uint64_t sequence, acknowledged;
    kj::Array<capnp::word> columns;
    std::string_view payload;

    // Throws kj::Exception if the frame is malformed.
    static Frame read(std::string_view bytes) {
        uint64_t head[3];
        KJ_REQUIRE(bytes.size() >= sizeof head, "the frame is too short");
        std::memcpy(head, bytes.data(), sizeof head);
        bytes.remove_prefix(sizeof head);
        KJ_REQUIRE(head[0] <= bytes.size() && head[0] % sizeof(capnp::word) == 0, "the columns do not fit");
        auto columns = kj::heapArray<capnp::word>(head[0] / sizeof(capnp::word));
        std::memcpy(columns.begin(), bytes.data(), head[0]);
        return {head[1], head[2], kj::mv(columns), bytes.substr(head[0])};
    }

    static std::string write(
        capnp::MessageBuilder& message, uint64_t sequence, uint64_t acknowledged, std::string_view payload = {}) {
        const auto words = capnp::messageToFlatArray(message);
        const uint64_t head[] = {words.asBytes().size(), sequence, acknowledged};
        std::string bytes(reinterpret_cast<const char*>(head), sizeof head);
        return bytes.append(words.asChars().begin(), words.asChars().size()).append(payload);
    }
};

class Link;

// What uses a link.
struct LinkOwner {
    virtual void greet(Link&, Hello::Builder) = 0;  // fill in who this peer is
    virtual void connected(Link&, Welcome::Reader, bool resumed) = 0;
    virtual void failed(Link&, const std::string& reason, bool for_good) = 0;  // if not for good, attempts go on
    virtual void received(Link&, Message::Reader, std::string_view payload) = 0;
};

class Link {
public:
    // `keys`: server, public and secret, of 32 bytes each; none where services have no keys.
    Link(LinkOwner& owner, zmq::context_t& context, const std::string& address,
        const std::map<std::string, std::string>& keys, milliseconds timeout)
        : owner_(owner), context_(context), address_(address), keys_(keys), timeout_(std::min<milliseconds>(timeout, 8'760h)) {}

    bool is_up() const { return up_; }

    // Send the message that `fill` makes, now, or when the connection is there again. It is lost if the service begins a
    // new stream.
    void send(auto fill, std::string_view payload = {}) {
        capnp::MallocMessageBuilder builder;
        fill(builder.initRoot<Message>());
        const bool numbered = is_numbered(builder.getRoot<Message>());
        const auto frame = Frame::write(builder, numbered ? ++sent_ : 0, received_, payload);
        if (numbered) kept_.emplace_back(sent_, frame);
        owed_ = 0;
        if (up_) write(frame);
    }

    // Receive what is there, do what is due, and add what the next turn must wait for.
    void turn(std::vector<zmq::pollitem_t>& items) {
        if (!ended_ && !socket_ && Clock::now() >= attempt_at_) connect();
        for (zmq::message_t frame; socket_ && socket_->recv(frame, zmq::recv_flags::dontwait);) receive(frame);
        if (zmq::message_t failure; socket_ && monitor_->recv(failure, zmq::recv_flags::dontwait)) drop(*failure.data<uint16_t>());
        if (!ended_) keep_time(Clock::now());
        for (const auto& socket : {&socket_, &monitor_}) if (*socket) items.push_back({**socket, 0, ZMQ_POLLIN, 0});
    }

    // Say goodbye.
    void close() {
        send([](auto message) { message.initGoodbye(); });
        ended_ = true;
        drop();
    }

private:
    static constexpr milliseconds kFirstRetry = 50ms, kLastRetry = 1s;
    static constexpr int kFailures = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_CONNECT_RETRIED |
        ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

    // The first messages of the schema keep the connection; the others belong to the stream.
    static bool is_numbered(Message::Reader message) { return message.which() > Message::ACKNOWLEDGE; }

    void connect() {
        heard_at_ = Clock::now();
        const uint32_t epoch = htobe32(++epoch_);
        socket_.emplace(context_, zmq::socket_type::dealer);
        socket_->set(zmq::sockopt::routing_id, secret_ + std::string(reinterpret_cast<const char*>(&epoch), 4));
        socket_->set(zmq::sockopt::sndhwm, 0);
        socket_->set(zmq::sockopt::rcvhwm, 0);
        socket_->set(zmq::sockopt::linger, 200);
        socket_->set(zmq::sockopt::ipv6, true);
        socket_->set(zmq::sockopt::reconnect_ivl, -1);
        socket_->set(zmq::sockopt::heartbeat_ivl, 2'000);
        socket_->set(zmq::sockopt::heartbeat_ttl, 10'000);
        socket_->set(zmq::sockopt::heartbeat_timeout, 10'000);
        if (!keys_.empty()) {
            socket_->set(zmq::sockopt::curve_serverkey, keys_.at("server"));
            socket_->set(zmq::sockopt::curve_publickey, keys_.at("public"));
            socket_->set(zmq::sockopt::curve_secretkey, keys_.at("secret"));
        }
        const auto monitor = "inproc://" + std::to_string(reinterpret_cast<uintptr_t>(this)) + std::to_string(epoch_);
        zmq_socket_monitor(socket_->handle(), monitor.c_str(), kFailures);
        monitor_.emplace(context_, zmq::socket_type::pair);
        monitor_->connect(monitor);
        try {
            socket_->connect(address_);
        } catch (const zmq::error_t& error) {
            return refuse(error.what());
        }
        capnp::MallocMessageBuilder builder;
        auto hello = builder.initRoot<Message>().initHello();
        owner_.greet(*this, hello);
        hello.setProtocol(2);
        hello.setIdentity(bytes_of(identity_));
        hello.setIncarnation(incarnation_);
        hello.setEpoch(epoch_);
        hello.setPeerIncarnation(peer_incarnation_);
        hello.setReceived(received_);
        write(Frame::write(builder, 0, received_));
    }

    // `event`: why the connection has failed, as ZeroMQ's monitor says.
    void drop(uint16_t event = 0) {
        is_refused_ = event >= ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
        if (std::exchange(there_, false)) {
            down_since_ = Clock::now();
            retry_ = kFirstRetry;
        }
        up_ = false;
        monitor_.reset();
        socket_.reset();
        attempt_at_ = Clock::now() + retry_;
        retry_ = std::min(2 * retry_, kLastRetry);
    }

    void refuse(const std::string& reason) {
        ended_ = true;
        drop();
        owner_.failed(*this, address_ + ": " + (reason.empty() ? "it gave no reason" : reason), true);
    }

    void keep_time(Clock::time_point now) {
        if (socket_ && now > heard_at_ + (up_ ? std::max(timeout_, 3 * heartbeat_) : 2s)) drop();
        if (owed_ >= 256 || (owed_ > 0 && now >= owed_since_ + 50ms)) send([](auto message) { message.initAcknowledge(); });
        if (now > beaten_at_ + heartbeat_ * 3 / 2) beat(now.time_since_epoch() / 1ns, false);
        if (!up_ && now > down_since_ + timeout_) {
            down_since_ = now;  // so that what the program begins later has a timeout, too
            const auto advice = !keys_.empty() ? "is it running, and does it know these keys?"
                : is_refused_ ? "it may demand keys" : "is it running?";
            owner_.failed(*this, address_ + ": no connection for " + std::to_string(timeout_ / 1ms) + " ms; " + advice, false);
        }
    }

    void receive(const zmq::message_t& bytes) {
        heard_at_ = Clock::now();
        try {
            KJ_REQUIRE(!bytes.more(), "no valid message has several frames");
            const auto frame = Frame::read(bytes.to_string_view());
            capnp::FlatArrayMessageReader reader(frame.columns);
            const auto message = reader.getRoot<Message>();
            if (message.isWelcome()) welcomed(message.getWelcome());
            else if (message.isRefused()) refuse(kj::strArray(message.getRefused().getReasons(), "; ").cStr());
            else if (message.isNeedHello()) drop();
            else if (up_) receive(frame, message);
        } catch (const kj::Exception&) {  // malformed
            drop();
        }
    }

    void welcomed(Welcome::Reader welcome) {
        if (up_) return;
        const bool resumed = welcome.getResumed() && welcome.getIncarnation() == peer_incarnation_;
        peer_incarnation_ = welcome.getIncarnation();
        heartbeat_ = milliseconds(static_cast<int64_t>(1'000 * welcome.getHeartbeatSeconds()));
        beaten_at_ = heard_at_;
        owed_ = 0;
        up_ = true;
        acknowledge(resumed ? welcome.getReceived() : sent_);
        if (!resumed) sent_ = received_ = 0;
        for (auto& [_, frame] : kept_) {
            std::memcpy(frame.data() + 16, &received_, sizeof received_);  // what we have received by now
            write(frame);
        }
        owner_.connected(*this, welcome, resumed);
    }

    void receive(const Frame& frame, Message::Reader message) {
        KJ_ON_SCOPE_SUCCESS(there_ = up_);
        if (frame.acknowledged > sent_) {  // the two sides disagree about the stream
            peer_incarnation_ = 0;
            return drop();
        }
        acknowledge(frame.acknowledged);
        if (message.isHeartbeat()) return answer(message.getHeartbeat());
        if (!is_numbered(message) || (frame.sequence > 0 && frame.sequence <= received_)) return;
        if (frame.sequence != received_ + 1) return drop();
        received_ += 1;
        if (owed_++ == 0) owed_since_ = heard_at_;
        KJ_ON_SCOPE_FAILURE(received_ -= 1);  // a malformed message does not count
        owner_.received(*this, message, frame.payload);
    }

    void answer(Heartbeat::Reader heartbeat) {
        if (heartbeat.getSeconds() > 0) heartbeat_ = milliseconds(static_cast<int64_t>(1'000 * heartbeat.getSeconds()));
        if (!heartbeat.getEcho()) beat(heartbeat.getSent(), true);
    }

    void beat(uint64_t sent, bool echo) {
        beaten_at_ = Clock::now();
        send([&](auto message) {
            message.initHeartbeat().setSent(sent);
            message.getHeartbeat().setEcho(echo);
        });
    }

    void acknowledge(uint64_t sequence) {
        while (!kept_.empty() && kept_.front().first <= sequence) kept_.pop_front();
    }

    void write(const std::string& frame) { socket_->send(zmq::buffer(frame), zmq::send_flags::dontwait); }

    LinkOwner& owner_;
    zmq::context_t& context_;
    const std::string address_;
    const std::map<std::string, std::string> keys_;
    const milliseconds timeout_;
    const std::string identity_ = random_bytes(16), secret_ = '\1' + random_bytes(15);
    const uint64_t incarnation_ = 1 + randombytes_uniform(0xfffffe);
    uint64_t peer_incarnation_ = 0, sent_ = 0, received_ = 0;
    uint32_t epoch_ = 0, owed_ = 0;  // `owed_`: messages that we have not acknowledged
    std::deque<std::pair<uint64_t, std::string>> kept_;  // numbered messages that the service has not acknowledged
    std::optional<zmq::socket_t> socket_, monitor_;
    bool up_ = false, ended_ = false, is_refused_ = false;
    bool there_ = false;  // whether a valid message has come after Welcome: a service may say nothing else
    milliseconds retry_ = kFirstRetry, heartbeat_ = 1s;
    Clock::time_point down_since_ = Clock::now(), attempt_at_ = down_since_, heard_at_, owed_since_, beaten_at_;
};

}  // namespace scaler
