package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
	"github.com/coder/websocket"
)

// once lets a client not retry, so that errors show at once.
var once = azservicebus.RetryOptions{MaxRetries: -1}

// check ends the program with the error, if there is one; the test shows it.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// must is the value of something that has to succeed.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func pointer[T any](value T) *T { return &value }

// connect makes a client that takes the way that the test asks for. The SDK takes a port of the connection string
// over plain TCP, which UseDevelopmentEmulator=true switches on, and one of CustomEndpoint over TLS.
func connect(connection string, retry azservicebus.RetryOptions) *azservicebus.Client {
	options := azservicebus.ClientOptions{RetryOptions: retry}
	if given.Endpoint != "" {
		authorities := x509.NewCertPool()
		authorities.AppendCertsFromPEM(must(os.ReadFile(given.CA)))
		config := &tls.Config{RootCAs: authorities}
		if given.WebSocket {
			options.NewWebSocketConn = dialer(config)
		} else {
			options.CustomEndpoint = given.Endpoint
			options.TLSConfig = config
		}
	}
	return must(azservicebus.NewClientFromConnectionString(connection, &options))
}

// dialer opens WebSockets as the SDK's example does, at the port that the system picked for the broker.
func dialer(config *tls.Config) func(context.Context, azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	return func(ctx context.Context, wanted azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
		address, err := url.Parse(wanted.Host)
		if err != nil {
			return nil, err
		}
		address.Host = given.Endpoint
		options := &websocket.DialOptions{HTTPClient: client, Subprotocols: []string{"amqp"}}
		socket, _, err := websocket.Dial(ctx, address.String(), options)
		if err != nil {
			return nil, err
		}
		return websocket.NetConn(context.Background(), socket, websocket.MessageBinary), nil
	}
}

func sender(client *azservicebus.Client, queue string) *azservicebus.Sender {
	return must(client.NewSender(queue, nil))
}

func receiver(client *azservicebus.Client, queue string) *azservicebus.Receiver {
	return must(client.NewReceiverForQueue(queue, nil))
}

func message(body string) *azservicebus.Message {
	return &azservicebus.Message{Body: []byte(body), MessageID: pointer("id of " + body)}
}

// sendAll sends one message after the other, so that they arrive in this order.
func sendAll(ctx context.Context, sender *azservicebus.Sender, messages ...*azservicebus.Message) {
	for _, message := range messages {
		check(sender.SendMessage(ctx, message, nil))
	}
}

// source is what receivers, of queues and of sessions, have in common.
type source interface {
	ReceiveMessages(
		context.Context, int, *azservicebus.ReceiveMessagesOptions,
	) ([]*azservicebus.ReceivedMessage, error)
	CompleteMessage(context.Context, *azservicebus.ReceivedMessage, *azservicebus.CompleteMessageOptions) error
}

// receive waits for `number` messages; it is given fewer when no more come in time.
func receive(
	ctx context.Context, from source, number int, wait time.Duration,
) (messages []*azservicebus.ReceivedMessage) {
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for len(messages) < number {
		more, err := from.ReceiveMessages(limited, number-len(messages), nil)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		check(err)
		messages = append(messages, more...)
	}
	return messages
}

// takeAll receives and completes `number` messages and tells their bodies.
func takeAll(ctx context.Context, from source, number int) []string {
	messages := receive(ctx, from, number, 20*time.Second)
	for _, message := range messages {
		check(from.CompleteMessage(ctx, message, nil))
	}
	return bodies(messages)
}

func bodies(messages []*azservicebus.ReceivedMessage) []string {
	texts := []string{}
	for _, message := range messages {
		texts = append(texts, string(message.Body))
	}
	return texts
}

// problem is an error as a test looks at it; its code is "none" when there was none.
type problem struct {
	Code    string  `json:"code"`
	Text    string  `json:"text"`
	Seconds float64 `json:"seconds"`
}

// failure runs something that should fail. The code is the SDK's own where it has one, else the AMQP condition.
func failure(what func() error) problem {
	started := time.Now()
	err := what()
	seen := problem{Code: "none", Seconds: time.Since(started).Seconds()}
	if err == nil {
		return seen
	}
	seen.Code, seen.Text = fmt.Sprintf("%T", err), err.Error()
	var known *azservicebus.Error
	var condition *amqp.Error
	switch {
	case errors.As(err, &known):
		seen.Code = string(known.Code)
	case errors.Is(err, azservicebus.ErrMessageTooLarge):
		seen.Code = "too large"
	case errors.Is(err, context.DeadlineExceeded):
		seen.Code = "deadline"
	case errors.As(err, &condition):
		seen.Code = string(condition.Condition)
	}
	return seen
}

// seconds is the time that something took that has to succeed.
func seconds(what func() error) float64 {
	started := time.Now()
	check(what())
	return time.Since(started).Seconds()
}
