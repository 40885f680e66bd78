package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// refusals: a missing entity is told at once, though the client may retry; a missing right and a wrong key as well.
func refusals(ctx context.Context) found {
	sendTo := func(client *azservicebus.Client, queue string) problem {
		return failure(func() error { return sender(client, queue).SendMessage(ctx, message("m"), nil) })
	}
	receiveFrom := func(client *azservicebus.Client, queue string) problem {
		return failure(func() error {
			limited, cancel := context.WithTimeout(ctx, 25*time.Second)
			defer cancel()
			_, err := receiver(client, queue).ReceiveMessages(limited, 1, nil)
			return err
		})
	}
	patient := connect(given.Connection, azservicebus.RetryOptions{MaxRetries: 3, RetryDelay: time.Minute})
	defer patient.Close(ctx)
	listener, speaker := connect(given.ListenOnly, once), connect(given.SendOnly, once)
	defer listener.Close(ctx)
	defer speaker.Close(ctx)
	stranger := connect(given.Wrong, once)
	defer stranger.Close(ctx)
	return found{
		"missingSender":   sendTo(patient, "missing"),
		"missingReceiver": receiveFrom(patient, "missing"),
		"noSend":          sendTo(listener, given.Queue),
		"noListen":        receiveFrom(speaker, given.Queue),
		"wrongKey":        sendTo(stranger, given.Queue),
	}
}

// manyLinks: five senders and five receivers on one connection; every message arrives once.
func manyLinks(ctx context.Context) found {
	const links = 5
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	var guard sync.Mutex
	seen, problems := map[string]int{}, []string{}
	receiving, all := context.WithTimeout(ctx, 50*time.Second)
	defer all()
	note := func(err error) {
		guard.Lock()
		defer guard.Unlock()
		problems = append(problems, err.Error())
		all()
	}

	var receivers, senders sync.WaitGroup
	for range links {
		receivers.Go(func() {
			from := receiver(client, given.Queue)
			for receiving.Err() == nil {
				got, err := from.ReceiveMessages(receiving, 200, nil)
				if err != nil && !errors.Is(err, context.Canceled) {
					note(err)
				}
				var settling sync.WaitGroup
				for _, one := range got {
					settling.Go(func() {
						if err := from.CompleteMessage(ctx, one, nil); err != nil {
							note(err)
							return
						}
						guard.Lock()
						defer guard.Unlock()
						seen[string(one.Body)]++
						if len(seen) == given.Number {
							all()
						}
					})
				}
				settling.Wait()
			}
		})
	}
	for link := range links {
		senders.Go(func() {
			to := sender(client, given.Queue)
			part := given.Number / links
			for index := 0; index < part; {
				batch := must(to.NewMessageBatch(ctx, nil))
				for last := min(index+100, part); index < last; index++ {
					check(batch.AddMessage(message(strconv.Itoa(link*part+index)), nil))
				}
				check(to.SendMessageBatch(ctx, batch, nil))
			}
		})
	}
	senders.Wait()
	receivers.Wait()
	twice := 0
	for _, times := range seen {
		if times > 1 {
			twice++
		}
	}
	return found{"distinct": len(seen), "twice": twice, "problems": problems}
}

// restarted: the broker is started again under load; the client goes on by itself, and what was accepted arrives.
func restarted(ctx context.Context) found {
	retry := azservicebus.RetryOptions{
		MaxRetries: 100, RetryDelay: 50 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond,
	}
	client := connect(given.Connection, retry)
	defer client.Close(ctx)
	var guard sync.Mutex
	seen := map[string]bool{}
	missing := func(sent []string) bool {
		guard.Lock()
		defer guard.Unlock()
		for _, body := range sent {
			if !seen[body] {
				return true
			}
		}
		return false
	}

	receiving, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		from := receiver(client, given.Queue)
		for receiving.Err() == nil {
			// What fails here comes again: the SDK connects anew at the next call.
			got, _ := from.ReceiveMessages(receiving, 50, nil)
			for _, one := range got {
				guard.Lock()
				seen[string(one.Body)] = true
				guard.Unlock()
				// The SDK retries settlements at intervals of its own, from 4 seconds on; one whose connection is lost
				// is not worth that: the message comes again, unless it is settled and only the answer is lost.
				settling, cancel := context.WithTimeout(receiving, time.Second)
				_ = from.CompleteMessage(settling, one, nil)
				cancel()
			}
		}
	})

	to := sender(client, given.Queue)
	sent, slowest, afterwards, refused := []string{}, 0.0, 0, []string{}
	// The longest send is the one that the broker's absence held up; it takes as long as a start on a busy machine.
	end := time.Now().Add(time.Duration(given.Seconds * float64(time.Second)))
	for time.Now().Before(end) || afterwards < 20 {
		body := fmt.Sprint(len(sent) + len(refused))
		outcome := failure(func() error { return to.SendMessage(ctx, message(body), nil) })
		if outcome.Seconds > slowest {
			slowest, afterwards = outcome.Seconds, 0
		}
		if outcome.Code == "none" {
			sent = append(sent, body)
			afterwards++
		} else {
			refused = append(refused, outcome.Code)
		}
		time.Sleep(2 * time.Millisecond)
	}
	for missing(sent) {
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	done.Wait()
	return found{"sent": len(sent), "afterwards": afterwards, "refused": refused, "slowest": slowest}
}
