#include "link.hpp"

#include <sodium.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>

#include <capnp/serialize.h>

#include "scaler.hpp"

namespace scaler {
namespace {

using namespace std::chrono_literals;

constexpr auto kGreeting = 2s;
constexpr auto kFirstRetry = 50ms, kLastRetry = 1000ms, kAcknowledge = 50ms;
constexpr uint32_t kAcknowledgeMessages = 256;
constexpr size_t kHeadBytes = 24;
constexpr uint16_t kProtocol = 2;
constexpr int kMonitored = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_CONNECT_RETRIED |
    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

void put(std::string& out, uint64_t value) {  // little-endian, as the hosts that this is built for
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

uint64_t get(const char* at) {
    uint64_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

bool is_numbered(Message::Reader message) {
    switch (message.which()) {
        case Message::HELLO:
        case Message::WELCOME:
        case Message::REFUSED:
        case Message::NEED_HELLO:
        case Message::HEARTBEAT:
        case Message::ACKNOWLEDGE: return false;
        default: return true;
    }
}

std::string framed(capnp::MallocMessageBuilder& message, uint64_t sequence, uint64_t received, std::string_view payload) {
    const auto words = capnp::messageToFlatArray(message);
    const auto columns = words.asBytes();
    std::string out;
    out.reserve(kHeadBytes + columns.size() + payload.size());
    put(out, columns.size());
    put(out, sequence);
    put(out, received);
    out.append(reinterpret_cast<const char*>(columns.begin()), columns.size());
    return out.append(payload);
}

}  // namespace

std::string random_bytes(size_t count) {
    if (sodium_init() < 0) throw Error("ScalerError", "libsodium cannot be initialized");
    std::string bytes(count, '\0');
    randombytes_buf(bytes.data(), count);
    return bytes;
}

Keys read_keys(const std::string& directory) {
    if (directory.empty()) return {};
    const std::string file = directory + "/client.key";
    struct stat found {};
    if (stat(file.c_str(), &found) != 0) throw Error("KeyFileError", file + " is not there: copy it from the scheduler's host");
    if (found.st_mode & 077) throw Error("KeyFileError", file + " is not private: chmod 600 it");
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    const std::string content = text.str();
    const auto key = [&](const std::string& name) {
        std::smatch match;
        if (!std::regex_search(content, match, std::regex("(^|\n)" + name + " = \"([0-9a-f]{64})\""))) {
            throw Error("KeyFileError", file + " has no key " + name + ": copy the file again");
        }
        std::string bytes(32, '\0');
        sodium_hex2bin(reinterpret_cast<unsigned char*>(bytes.data()), 32, match[2].str().c_str(), 64, nullptr, nullptr, nullptr);
        return bytes;
    };
    return {key("server"), key("public"), key("secret")};
}

Link::Link(zmq::context_t& context, std::string address, Keys keys, std::chrono::milliseconds timeout,
           std::function<void(Hello::Builder)> hello, Events events)
    : context_(context), address_(std::move(address)), keys_(std::move(keys)), timeout_(timeout),
      hello_(std::move(hello)), events_(std::move(events)), incarnation_(1 + randombytes_uniform(0xfffffe)),
      down_since_(Clock::now()), heard_at_(down_since_), attempt_at_(down_since_) {}

void Link::send(capnp::MallocMessageBuilder& message, std::string_view payload) {
    if (!up_) return;
    const bool numbered = is_numbered(message.getRoot<Message>().asReader());
    auto frame = framed(message, numbered ? ++sent_ : 0, received_, payload);
    owed_ = 0;
    write(frame);
    if (numbered) kept_.emplace_back(sent_, std::move(frame));
}

void Link::connect() {
    epoch_ += 1;
    socket_.emplace(context_, ZMQ_DEALER);
    const auto number = htobe32(epoch_);
    const std::string route = "\1" + secret_.substr(1) + std::string(reinterpret_cast<const char*>(&number), 4);
    socket_->set(zmq::sockopt::routing_id, route);
    socket_->set(zmq::sockopt::sndhwm, 0);
    socket_->set(zmq::sockopt::rcvhwm, 0);
    socket_->set(zmq::sockopt::linger, 200);
    socket_->set(zmq::sockopt::ipv6, true);
    socket_->set(zmq::sockopt::reconnect_ivl, -1);
    socket_->set(zmq::sockopt::heartbeat_ivl, 2000);
    socket_->set(zmq::sockopt::heartbeat_ttl, 10'000);
    socket_->set(zmq::sockopt::heartbeat_timeout, 10'000);
    if (!keys_.server.empty()) {
        socket_->set(zmq::sockopt::curve_serverkey, keys_.server);
        socket_->set(zmq::sockopt::curve_publickey, keys_.public_key);
        socket_->set(zmq::sockopt::curve_secretkey, keys_.secret_key);
    }
    std::ostringstream place;
    place << "inproc://monitor-" << this << '-' << epoch_;
    zmq_socket_monitor(socket_->handle(), place.str().c_str(), kMonitored);
    monitor_.emplace(context_, ZMQ_PAIR);
    monitor_->connect(place.str());
    socket_->connect(address_);
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<Message>().initHello();
    hello_(hello);
    hello.setProtocol(kProtocol);
    hello.setIdentity(kj::arrayPtr(reinterpret_cast<const kj::byte*>(identity_.data()), identity_.size()));
    hello.setIncarnation(incarnation_);
    hello.setEpoch(epoch_);
    hello.setPeerIncarnation(peer_incarnation_);
    hello.setReceived(received_);
    write(framed(message, 0, received_, {}));
    heard_at_ = Clock::now();
}

void Link::drop() {
    if (up_) {
        down_since_ = Clock::now();
        retry_ = kFirstRetry;
    }
    up_ = false;
    monitor_.reset();
    socket_.reset();
    attempt_at_ = Clock::now() + retry_;
    retry_ = std::min(2 * retry_, std::chrono::milliseconds(kLastRetry));
}

void Link::turn() {
    if (ended_) return;
    if (!socket_) {
        if (Clock::now() >= attempt_at_) connect();
    } else {
        zmq::message_t frame;
        while (socket_ && !ended_ && socket_->recv(frame, zmq::recv_flags::dontwait)) {
            if (frame.more()) {  // no valid message has several frames
                drop();
                break;
            }
            receive(frame);
        }
        for (zmq::message_t event; monitor_ && monitor_->recv(event, zmq::recv_flags::dontwait);) {
            uint16_t kind;
            std::memcpy(&kind, event.data(), sizeof kind);
            if (kind & (ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL)) {
                failure_ = keys_.server.empty() ? "; it may demand keys" : "; the service has other keys, or does not accept this one";
            }
            drop();
        }
    }
    const auto now = Clock::now();
    if (socket_ && !up_ && now > heard_at_ + kGreeting) drop();
    if (up_ && now > heard_at_ + std::max(timeout_, 3 * heartbeat_)) drop();
    if (owed_ > 0 && (owed_ >= kAcknowledgeMessages || now >= owed_since_ + kAcknowledge)) {
        capnp::MallocMessageBuilder message;
        message.initRoot<Message>().initAcknowledge();
        send(message);
    }
    if (!up_ && !lost_ && !ended_ && now > down_since_ + timeout_) {
        lost_ = true;
        events_.lost(address_ + ": no connection for " + std::to_string(timeout_.count()) + " ms" + failure_);
    }
}

void Link::receive(const zmq::message_t& frame) {
    heard_at_ = Clock::now();
    const auto* bytes = frame.data<char>();
    if (frame.size() < kHeadBytes || get(bytes) > frame.size() - kHeadBytes || get(bytes) % 8 != 0) return drop();
    const auto size = get(bytes), sequence = get(bytes + 8), acknowledged = get(bytes + 16);
    auto words = kj::heapArray<capnp::word>(size / 8);
    std::memcpy(words.begin(), bytes + kHeadBytes, size);
    const std::string_view payload(bytes + kHeadBytes + size, frame.size() - kHeadBytes - size);
    try {
        capnp::FlatArrayMessageReader reader(words.asPtr());
        const auto message = reader.getRoot<Message>();
        if (message.isWelcome()) return welcomed(message.getWelcome());
        if (message.isRefused()) {
            std::string reasons;
            for (auto reason : message.getRefused().getReasons()) reasons += (reasons.empty() ? "" : "; ") + std::string(reason.cStr());
            ended_ = true;
            drop();
            return events_.refused(address_ + ": " + reasons);
        }
        if (message.isNeedHello()) return drop();
        if (!up_) return;
        if (acknowledged > sent_) {  // the two sides disagree about the stream
            peer_incarnation_ = 0;
            return drop();
        }
        acknowledge(acknowledged);
        if (sequence == 0 && is_numbered(message)) return drop();
        if (sequence != 0) {
            if (sequence <= received_) return;
            if (sequence != received_ + 1) return drop();
            received_ = sequence;
            if (owed_++ == 0) owed_since_ = heard_at_;
        }
        if (message.isHeartbeat()) {
            if (const double seconds = message.getHeartbeat().getSeconds(); seconds > 0) {
                heartbeat_ = std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
            }
            if (message.getHeartbeat().getEcho()) return;
            capnp::MallocMessageBuilder answer;
            auto heartbeat = answer.initRoot<Message>().initHeartbeat();
            heartbeat.setSent(message.getHeartbeat().getSent());
            heartbeat.setEcho(true);
            send(answer);
        } else if (sequence != 0) {
            events_.message(message, payload);
        }
    } catch (const kj::Exception&) {  // malformed
        drop();
    }
}

void Link::welcomed(Welcome::Reader welcome) {
    const bool resumed = welcome.getResumed() && welcome.getIncarnation() == peer_incarnation_;
    peer_incarnation_ = welcome.getIncarnation();
    heartbeat_ = std::chrono::milliseconds(static_cast<int64_t>(1000 * welcome.getHeartbeatSeconds()));
    up_ = true;
    lost_ = false;
    failure_.clear();
    owed_ = 0;
    if (resumed) {
        acknowledge(welcome.getReceived());
        for (auto& [_, frame] : kept_) {
            std::memcpy(frame.data() + 16, &received_, sizeof received_);  // what we have received by now
            write(frame);
        }
    } else {
        sent_ = received_ = 0;
        kept_.clear();
    }
    events_.up(welcome, resumed);
}

void Link::acknowledge(uint64_t sequence) {
    while (!kept_.empty() && kept_.front().first <= sequence) kept_.pop_front();
}

void Link::write(const std::string& frame) { socket_->send(zmq::buffer(frame), zmq::send_flags::dontwait); }

void Link::close() {
    if (up_) {
        capnp::MallocMessageBuilder message;
        message.initRoot<Message>().initGoodbye();
        send(message);
    }
    ended_ = true;
    up_ = false;
    monitor_.reset();
    socket_.reset();
}

void Link::add_to(std::vector<zmq::pollitem_t>& items) {
    if (!socket_) return;
    items.push_back({socket_->handle(), 0, ZMQ_POLLIN, 0});
    items.push_back({monitor_->handle(), 0, ZMQ_POLLIN, 0});
}

}  // namespace scaler
