// Holds this client's codec and link against the vectors of tests/conformance: `conformance FOLDER`. Prints what is
// wrong; the exit code is 1 then.

#include <capnp/dynamic.h>
#include <kj/encoding.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "link.hpp"

using namespace std::chrono_literals;
using nlohmann::json;
using scaler::bytes_of;
using scaler::Frame;
using scaler::text;

namespace {

int wrong = 0, right = 0;

void expect(bool is_right, const std::string& what) {
    is_right ? ++right : ++wrong;
    if (!is_right) std::cout << "WRONG: " << what << std::endl;
}

std::string hex(std::string_view bytes) { return text(kj::encodeHex(bytes_of(bytes)).asBytes()); }

std::string unhex(const std::string& digits) { return text(kj::decodeHex(kj::arrayPtr(digits.data(), digits.size()))); }

// --- messages as the vectors have them ------------------------------------------------------------------------------

constexpr std::string_view kLengths = "Lengths";

bool is_payload(const std::string& name) { return name.ends_with(kLengths); }

std::string column(const std::string& name) { return name.substr(0, name.size() - kLengths.size()); }

json fields_of(capnp::DynamicStruct::Reader message, std::string_view payload);

json value_of(const std::string& name, capnp::DynamicValue::Reader value) {
    switch (value.getType()) {
        case capnp::DynamicValue::BOOL: return value.as<bool>();
        case capnp::DynamicValue::INT: return value.as<int64_t>();
        case capnp::DynamicValue::UINT: return value.as<uint64_t>();
        case capnp::DynamicValue::FLOAT: return value.as<double>();
        case capnp::DynamicValue::TEXT: return value.as<capnp::Text>().cStr();
        default: break;
    }
    const auto bytes = value.as<capnp::Data>();
    if (name != "groups") return hex(text(bytes));
    kj::ArrayInputStream stream(bytes);
    capnp::InputStreamMessageReader reader(stream);
    return {{"group", fields_of(reader.getRoot<Group>(), {})}};
}

// Whole numbers of 64 bits are texts in the vectors.
json number_as_text(json value, capnp::Type type) {
    const bool is_wide = type.isInt64() || type.isUInt64();
    return is_wide ? json(value.dump()) : value;
}

json fields_of(capnp::DynamicStruct::Reader message, std::string_view payload) {
    json fields = json::object();
    for (const auto field : message.getSchema().getFields()) {
        const std::string name = field.getProto().getName();
        const auto value = message.get(field);
        if (!field.getType().isList()) {
            fields[name] = number_as_text(value_of(name, value), field.getType());
            continue;
        }
        auto& entries = fields[is_payload(name) ? column(name) : name] = json::array();
        for (const auto entry : value.as<capnp::DynamicList>()) {
            if (is_payload(name)) {
                entries.push_back(hex(payload.substr(0, entry.as<uint32_t>())));
                payload.remove_prefix(entry.as<uint32_t>());
            } else {
                entries.push_back(number_as_text(value_of(name, entry), field.getType().asList().getElementType()));
            }
        }
    }
    return fields;
}

void fill(capnp::DynamicStruct::Builder message, const json& fields, std::string& payload);

// Give a value of the vectors to `set`, as Cap'n Proto has it.
void give(const std::string& name, capnp::Type type, const json& value, std::string& payload, auto set) {
    if (is_payload(name)) {
        const auto bytes = unhex(value);
        payload += bytes;
        set(bytes.size());
    } else if (name == "groups") {
        capnp::MallocMessageBuilder builder;
        fill(builder.initRoot<Group>(), value.at("group"), payload);
        set(capnp::Data::Reader(capnp::messageToFlatArray(builder).asBytes()));
    } else if (type.isData()) {
        const auto bytes = unhex(value);
        set(capnp::Data::Reader(bytes_of(bytes)));
    } else if (type.isText()) {
        set(capnp::Text::Reader(value.get_ref<const std::string&>().c_str()));
    } else if (type.isInt64()) {
        set(static_cast<int64_t>(std::stoll(value.get<std::string>())));
    } else if (type.isUInt64()) {
        set(static_cast<uint64_t>(std::stoull(value.get<std::string>())));
    } else if (type.isBool()) {
        set(value.get<bool>());
    } else if (type.isFloat64()) {
        set(value.get<double>());
    } else {
        set(value.get<int64_t>());
    }
}

void fill(capnp::DynamicStruct::Builder message, const json& fields, std::string& payload) {
    for (const auto field : message.getSchema().getFields()) {
        const std::string name = field.getProto().getName();
        const auto& value = fields.at(is_payload(name) ? column(name) : name);
        if (!field.getType().isList()) {
            give(name, field.getType(), value, payload, [&](auto given) { message.set(field, given); });
            continue;
        }
        auto list = message.init(field, value.size()).as<capnp::DynamicList>();
        for (unsigned at = 0; at < value.size(); ++at) {
            const auto type = field.getType().asList().getElementType();
            give(name, type, value.at(at), payload, [&](auto given) { list.set(at, given); });
        }
    }
}

// A message that was read: its type, numbers and fields.
struct Read {
    explicit Read(const std::string& bytes) {
        const auto frame = Frame::read(bytes);
        capnp::FlatArrayMessageReader reader(frame.columns);
        capnp::DynamicStruct::Reader message = reader.getRoot<Message>();
        const auto which = KJ_REQUIRE_NONNULL(message.which());
        type = which.getProto().getName();
        type[0] = static_cast<char>(std::toupper(type[0]));
        sequence = std::to_string(frame.sequence);
        acknowledged = std::to_string(frame.acknowledged);
        fields = fields_of(message.get(which).as<capnp::DynamicStruct>(), frame.payload);
    }
    std::string type, sequence, acknowledged;
    json fields;
};

capnp::DynamicStruct::Builder member(Message::Builder message, std::string type) {
    type[0] = static_cast<char>(std::tolower(type[0]));
    return capnp::DynamicStruct::Builder(message).init(type).as<capnp::DynamicStruct>();
}

void check_messages(const json& vectors) {
    for (const auto& vector : vectors.at("messages")) {
        const std::string type = vector.at("type");
        const Read read(unhex(vector.at("frame")));
        expect(read.type == type && read.sequence == vectors.at("sequence") &&
            read.acknowledged == vectors.at("acknowledged") && read.fields == vector.at("fields"),
            type + " is read as " + read.fields.dump() + ", not as " + vector.at("fields").dump());
        capnp::MallocMessageBuilder builder;
        std::string payload;
        fill(member(builder.initRoot<Message>(), type), vector.at("fields"), payload);
        const Read written(Frame::write(builder, 7, 5, payload));
        expect(written.type == type && written.fields == vector.at("fields"), type + " is written as " + written.fields.dump());
    }
}

// --- conversations --------------------------------------------------------------------------------------------------

// A service that says what it is told, and a link to it.
class Talk : scaler::LinkOwner {
public:
    Talk() { listen("tcp://127.0.0.1:*"); }

    ~Talk() { link_->close(); }

    void step(const json& step) {
        if (step.contains("peer")) {
            const auto heard = hear(step.at("peer"));
            KJ_REQUIRE(heard.sequence == step.at("sequence"), heard.sequence);
            KJ_REQUIRE(heard.acknowledged == step.at("acknowledged"), heard.acknowledged);
            for (const auto& [name, value] : step.at("fields").items()) {
                KJ_REQUIRE(heard.fields.at(name) == value, name, heard.fields.dump());
            }
        } else if (step.contains("service")) {
            const auto ups = ups_;
            router_->send(zmq::buffer(route_), zmq::send_flags::sndmore);
            router_->send(zmq::buffer(unhex(step.at("frame"))));
            if (step.at("service") == "Welcome") wait([&] { return ups_ > ups; });
        } else if (step.contains("program")) {
            link_->send([&](Message::Builder message) {
                std::string payload;
                fill(member(message, step.at("program")), step.at("fields"), payload);
            });
        } else if (step.contains("delivered") || step.contains("refused")) {
            const std::string expected = step.value("delivered", "refused");
            wait([&] { return !told_.empty(); });
            KJ_REQUIRE(told_.front() == expected, told_.front());
            told_.pop_front();
        } else {
            const std::string address = router_->get(zmq::sockopt::last_endpoint);
            router_.reset();
            heard_.clear();
            listen(address);
        }
    }

    bool is_told_more() const { return !told_.empty(); }

private:
    static constexpr auto kPatience = 20s;

    void listen(const std::string& address) {
        const auto deadline = scaler::Clock::now() + kPatience;
        for (;;) {
            try {
                router_.emplace(context_, zmq::socket_type::router);
                router_->set(zmq::sockopt::linger, 0);
                router_->set(zmq::sockopt::router_mandatory, true);
                router_->bind(address);
                break;
            } catch (const zmq::error_t& error) {  // ZeroMQ frees an address later
                if (error.num() != EADDRINUSE || scaler::Clock::now() > deadline) throw;
                std::this_thread::yield();
            }
        }
        if (!link_) link_.emplace(static_cast<LinkOwner&>(*this), context_, router_->get(zmq::sockopt::last_endpoint), keys_, 60s);
    }

    void wait(auto condition) {
        for (const auto deadline = scaler::Clock::now() + kPatience; !condition();) {
            KJ_REQUIRE(scaler::Clock::now() < deadline, "not within 20 s");
            std::vector<zmq::pollitem_t> items{{router_->handle(), 0, ZMQ_POLLIN, 0}};
            link_->turn(items);
            zmq::poll(items, 5ms);
            for (zmq::message_t route, frame; router_->recv(route, zmq::recv_flags::dontwait);) {
                KJ_REQUIRE(router_->recv(frame).has_value());
                heard_.emplace_back(route.to_string(), frame.to_string());
            }
        }
    }

    // The next message, without those that may come at any time, unless it is one of them that is expected.
    Read hear(const std::string& type) {
        for (;;) {
            wait([&] { return !heard_.empty(); });
            const auto [route, frame] = heard_.front();
            heard_.pop_front();
            Read read(frame);
            const bool is_own_heartbeat = read.type == "Heartbeat" && !read.fields.at("echo");
            if (read.type != type && (read.type == "Acknowledge" || is_own_heartbeat)) continue;
            KJ_REQUIRE(read.type == type, read.type, type);
            if (type == "Hello") route_ = route;
            return read;
        }
    }

    void greet(scaler::Link&, Hello::Builder hello) override {
        hello.setRole(1);
        hello.setSession(3);
    }
    void connected(scaler::Link&, Welcome::Reader, bool) override { ups_ += 1; }
    void failed(scaler::Link&, const std::string&, bool for_good) override { told_.push_back(for_good ? "refused" : "lost"); }
    void received(scaler::Link&, Message::Reader message, std::string_view) override {
        std::string type = KJ_REQUIRE_NONNULL(capnp::DynamicStruct::Reader(message).which()).getProto().getName();
        type[0] = static_cast<char>(std::toupper(type[0]));
        told_.push_back(type);
    }

    const std::map<std::string, std::string> keys_;
    zmq::context_t context_;
    std::optional<zmq::socket_t> router_;
    std::optional<scaler::Link> link_;
    std::string route_;
    int ups_ = 0;
    std::deque<std::pair<std::string, std::string>> heard_;
    std::deque<std::string> told_;
};

void check_links(const json& vectors) {
    for (const auto& vector : vectors.at("links")) {
        const std::string name = vector.at("name");
        Talk talk;
        size_t number = 0;
        try {
            for (const auto& step : vector.at("steps")) {
                talk.step(step);
                number += 1;
            }
            expect(!talk.is_told_more(), name + ": the program is given more than that");
        } catch (const kj::Exception& error) {
            auto step = vector.at("steps").at(number);
            step.erase("frame");
            expect(false, name + ": step " + std::to_string(number) + ", " + step.dump() + ": " + error.getDescription().cStr());
        }
    }
}

}  // namespace

int main(int, char** words) {
    const std::string folder = words[1];
    check_messages(json::parse(std::ifstream(folder + "/messages.json")));
    check_links(json::parse(std::ifstream(folder + "/links.json")));
    std::cout << right << " right, " << wrong << " wrong" << std::endl;
    return wrong != 0;
}
