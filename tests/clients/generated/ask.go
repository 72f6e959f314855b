package main

import (
	"context"
	"fmt"
	"os"

	"revelator"
)

func main() {
	settings := revelator.NewConfiguration()
	settings.Servers = revelator.ServerConfigurations{{URL: os.Args[1]}}
	client := revelator.NewAPIClient(settings)
	ctx := context.Background()
	asked := *revelator.NewAnswerRequest(os.Args[2])
	answer, _, err := client.AnswerAPI.Answer(ctx).AnswerRequest(asked).Execute()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(answer.Answer, "|", answer.Citations[0].Title)
	_, wrong, _ := client.AnswerAPI.Answer(ctx).AnswerRequest(*revelator.NewAnswerRequest("")).Execute()
	fmt.Println(wrong.StatusCode)
}
